"""The command `sira`, until its modules are loaded."""

from __future__ import annotations

from sira_cli.interrupts import quit_on_interrupts


def main() -> None:
    """Run the command line, and exit."""
    quit_on_interrupts()  # while modules are loaded
    from sira_cli.cli import main as run

    try:
        run()
    finally:
        quit_on_interrupts()  # while threads end


if __name__ == "__main__":
    main()
