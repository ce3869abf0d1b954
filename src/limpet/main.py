"""The program `limpet`: the only thing above the doors."""

from limpet.cli import command

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    command(prog_name="limpet")


if __name__ == "__main__":
    main()
