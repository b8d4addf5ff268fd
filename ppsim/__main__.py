"""The program `ppsim`, also as `python -m ppsim`: loads the command line and runs it."""


def main() -> None:
    """Run the command line; who interrupts it while it loads gets an exit status and no traceback."""
    try:
        from ppsim.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
