"""``python -m adjointlab``."""

from adjointlab.cli.main import main

if __name__ == "__main__":
    main()
