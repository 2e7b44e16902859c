"""`python -m qwenmtp`."""

import sys

from qwenmtp.cli import main

sys.exit(main())
