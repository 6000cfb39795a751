"""Opens N streams at once, reads them to the end and prints the CPU seconds that took.

Run as `python -m loadgen.boundary_client PORT N` by the boundary bench.
"""

import asyncio
import sys
import time


async def _read(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")
    while await reader.read(65536):
        pass
    writer.close()


async def _main(port: int, streams: int) -> None:
    await asyncio.gather(*(_read(port) for _ in range(streams)))


if __name__ == "__main__":
    began = time.process_time()
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
    print(time.process_time() - began)
