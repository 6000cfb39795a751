"""What can go wrong between text and tokens. Every message is one sentence for a person."""


class TextError(ValueError):
    """Base of the errors below."""


class CodecError(TextError):
    """The tokenizer files of a model are missing, broken, or of a kind that we cannot read."""


class EncodingError(TextError):
    """A text that no tokenizer can encode: it holds an unpaired surrogate."""


class ChatTemplateError(TextError):
    """The model has no chat template, or its template refuses or fails on these messages."""
