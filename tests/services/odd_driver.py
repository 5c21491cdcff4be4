"""In place of Ray's driver: starts at once, answers for the round workers in ANSWERS alone, and
writes to the file RECEIVED that it started and what it was sent. MUTE: it never starts.
"""

import json
import os
import signal
import sys


def announce(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def main() -> None:
    answering = [int(index) for index in os.environ["ANSWERS"].split()]
    with open(os.environ["RECEIVED"], "a", encoding="utf-8", buffering=1) as received:
        sys.stdin.readline()
        received.write(json.dumps({"pid": os.getpid()}) + "\n")
        if "MUTE" in os.environ:
            signal.pause()
        announce("started", host="127.0.0.1")
        sys.stdin.readline()
        for line in sys.stdin:
            received.write(line)
            command = json.loads(line)
            if command.get("endpoint") in answering:
                announce("endpoint", number=command["number"], address=str(os.getpid()))


if __name__ == "__main__":
    main()
