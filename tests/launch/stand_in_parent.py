"""A parent of stand-in children: `stand_in_parent.py SETTINGS LIMITS COMMAND...` (two JSON structs)."""

from __future__ import annotations

import os
import sys

import msgspec

from epe.errors import BadInput
from epe.launch.limits import Limits
from epe.launch.serve import serve
from epe.launch.topology import ServeSettings


def main() -> int:
    settings = msgspec.json.decode(sys.argv[1], type=ServeSettings)
    limits = msgspec.json.decode(sys.argv[2], type=Limits)
    try:
        return serve(settings, env=os.environ, child_command=sys.argv[3:], limits=limits)
    except BadInput as error:
        sys.stderr.write(f"epe: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
