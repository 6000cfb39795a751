"""Fixed texts for numerical tests, each longer than 128 tokens of the default model."""

TEXTS = (
    """The history of water rights in the western United States begins with the miners of
California,
who diverted streams to wash gold from gravel. They carried with them a simple rule: the first
person to put water to use had the better right to it. When a drought came, the last to arrive
was the first to be shut off. A watermaster was appointed to open and close the gates of each
canal so that every holder received the share that the law allowed, and no more than that. The
office was seldom popular. Farmers at the end of a ditch suspected those above them of stealing
at night, and those above complained that the water they were owed never came. Over time the
courts wrote down the priorities in long decrees.""",
    """def quicksort(items):
    if len(items) <= 1:
        return items
    pivot = items[len(items) // 2]
    left = [x for x in items if x < pivot]
    middle = [x for x in items if x == pivot]
    right = [x for x in items if x > pivot]
    return quicksort(left) + middle + quicksort(right)


def main():
    numbers = [3, 6, 8, 10, 1, 2, 1]
    print(quicksort(numbers))


if __name__ == '__main__':
    main()""",
    """Once upon a time, in a small village at the edge of a deep forest, there lived an old
clockmaker and his granddaughter. Every morning she would wind the great clock in the square, and
every
evening she would listen to its bell. One winter night the bell did not ring. The girl put on
her coat, took a lantern, and climbed the narrow stairs of the tower. At the top she found a
small owl sitting on the hammer, fast asleep. She laughed, lifted it gently, and carried it
home. The next day the bell rang as before, and the owl stayed with them until spring, when the
snow melted and the forest grew green again.""",
    """Photosynthesis is the process by which green plants, algae and some bacteria convert light
energy into chemical energy. In the first stage, chlorophyll absorbs light and splits water
molecules, releasing oxygen and producing the energy carriers ATP and NADPH. In the second
stage, known as the Calvin cycle, these carriers are used to turn carbon dioxide into sugars.
The rate of photosynthesis depends on the intensity of light, the concentration of carbon
dioxide and the temperature. In most plants the process takes place in the leaves, whose stomata
open and close to control the exchange of gases with the air around them, and the loss of water.
At night the plant only respires.""",
    """Q: A train leaves the station at 9:15 and travels at 80 kilometres per hour. A second train
leaves the same station at 10:00 and travels in the same direction at 110 kilometres per hour.
When does the second train catch up with the first?
A: The first train has a head start of 45 minutes, so it is 60 kilometres ahead when the second
train leaves. The second train gains 30 kilometres every hour. It therefore needs two hours to
close the gap, and catches up with the first train at 12:00. Each train is then 220 kilometres
from the station.""",
)

PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "In the year 1969, astronauts",
    "The three primary colours are",
    "A good recipe for bread begins with",
    "The mitochondria is the",
    "def fibonacci(n):",
    "SELECT name, age FROM",
    "Dear hiring manager,",
    "The main cause of the First World War was",
    "To be a good listener, you should",
    "The quick brown fox",
    "Machine learning is a field of",
    "My favourite season is autumn because",
    "The Pythagorean theorem states that",
    "Shakespeare wrote many plays, including",
    "The difference between a frog and a toad is",
    "In order to save money, a family can",
    "1, 1, 2, 3, 5, 8, 13,",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
)
