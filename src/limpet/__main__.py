"""`python -m limpet`, the same as `limpet`."""

from limpet.main import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
