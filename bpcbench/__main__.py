"""`python -m bpcbench`."""

from bpcbench.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
