"""The program as `python -m diffuserve` starts it."""

from diffuserve.cli.main import main

if __name__ == "__main__":
    main()
