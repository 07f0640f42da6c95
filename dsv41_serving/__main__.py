"""`python -m dsv41_serving` is `dsv41`."""

from dsv41_serving.cli import main

if __name__ == "__main__":
    main()
