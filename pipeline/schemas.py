"""``sej schema``: the columns of the values, kept with the messages in ``schema.json``.

The file is in the path that is read: in a journal, in a directory of sharded journals, or in a hub's root. A table of
that path has these columns, and a change of the file counts for what is opened later. A schema may get columns, which
are null in older messages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from pipeline.columns import columns_of
from pipeline.options import VALUE_FORMATS, Fields, OptionError
from sej.cli.shared.command import PATH
from sej.errors import NotAJournalError, SejError
from sej.system.disk import OS, replace_file

_NAME: Final = "schema.json"


def kept_schema(paths: Sequence[str]) -> Fields | None:
    """Return schema, format and definition that are kept in the first of these paths that has any; else None.

    Raises:
        SejError: the file is damaged.
    """
    for directory in paths:
        path = os.path.join(directory, _NAME)
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
            return Fields(found["schema"], found["format"], found["definition"])
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (ValueError, KeyError, TypeError) as error:
            raise SejError(
                f"not a schema ({error!r}); write it again with sej schema set, or remove the file", path=path
            ) from error
    return None


def keep_schema(directory: str, fields: Fields, *, replace: bool = False) -> None:
    """Keep a schema in a directory, durably.

    Raises:
        NotAJournalError: the path is not a directory.
        OptionError: the schema cannot be parsed; or it loses or changes a column of the kept one, and replace is not
            set.
    """
    from pipeline.values import typed_columns, value_format

    if not os.path.isdir(directory):
        raise NotAJournalError("expected a journal, or a directory of journals", path=directory)
    columns = typed_columns(fields.schema or "")
    value_format(fields, ("--format", "--definition"))
    definition = fields.definition
    if definition is not None and os.path.isfile(definition):  # of Avro, which may be moved later
        definition = Path(definition).read_text(encoding="utf-8")
    elif definition is not None and fields.format == "protobuf":  # as a later reader finds it, in another directory
        definition = os.path.abspath(definition)
    fields = fields._replace(definition=definition)
    before = None if replace else kept_schema([directory])
    if before is not None:
        old = columns_of(before.schema or "")
        if before.format != fields.format or any(columns.get(name) != kind for name, kind in old.items()):
            raise OptionError(
                f"{directory} has {before.format}: {before.schema}; it may only get new columns; --replace changes the"
                " existing ones"
            )
    text = json.dumps(_row(fields), indent=1) + "\n"
    path = os.path.join(directory, _NAME)
    replace_file(OS, f"{path}.{os.getpid()}.tmp", path, text.encode())


def _row(fields: Fields) -> dict[str, str | None]:
    return {"schema": fields.schema, "format": fields.format, "definition": fields.definition}


@click.group("schema")
def app() -> None:
    """Columns of the values, kept with the messages, for sej sql, export, ship, pipeline.table and Spark."""


@app.command("set")
@click.argument("path", type=PATH)
@click.argument("columns")
@click.option(
    "--format", "form", type=click.Choice(VALUE_FORMATS), default="json", show_default=True, help="The values."
)
@click.option("--definition", help="Avro: the schema, as JSON or a file. Protobuf: FILE:MESSAGE, of a descriptor set.")
@click.option("--replace", is_flag=True, help="Also if a column is lost or becomes another.")
def set_(path: Path, columns: str, form: str, definition: str | None, replace: bool) -> None:
    """Keep COLUMNS, fields of the values with the types of Spark, with the journals in PATH.

    Messages stay as they are. Where a value lacks a field, the column is null.

    Example: sej schema set orders 'id bigint, amount decimal(10,2), at timestamp'
    """
    keep_schema(str(path), Fields(columns, form, definition), replace=replace)


@app.command("show")
@click.argument("path", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show(path: Path, as_json: bool) -> None:
    """Print the schema that is kept in PATH.

    Example: sej schema show orders
    """
    found = kept_schema([str(path)])
    if found is None:
        raise SejError("this directory has no schema; `sej schema set` stores one", path=path)
    if as_json:
        click.echo(json.dumps(_row(found)))
        return
    click.echo(f"{found.format}: {found.schema}" + (f"\n{found.definition}" if found.definition is not None else ""))


@app.command("remove")
@click.argument("path", type=PATH)
def remove(path: Path) -> None:
    """Remove the schema that is kept in PATH; messages stay as they are.

    Example: sej schema remove orders
    """
    if kept_schema([str(path)]) is None:
        raise SejError("this directory has no schema", path=path)
    OS.unlink(os.path.join(path, _NAME))
