"""Records a table of all configurations; the same as `scope-torch record_table`."""

from scope_torch.cli.record_table import main

if __name__ == "__main__":
    main()
