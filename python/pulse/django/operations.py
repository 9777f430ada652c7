"""The operations of this app's migrations: install pulse, upgrade it, remove it.

They are not atomic: the scripts are transactions of their own, and an upgrade is tried
again when a lock is not free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError
from django.db import router
from django.db.migrations.operations.base import Operation

from pulse import install
from pulse.install import Installed, Plan


class InstallPulse(Operation):
    """Bring a database to the version of the package; reversed, remove pulse.

    Each release adds a migration with it. A new database gets everything from the
    first one, and the others find nothing to do.
    """

    reduces_to_sql = False
    reversible = True

    def __init__(self, version: str, first: bool = False) -> None:
        self.version = version
        self.first = first

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        values = {"version": self.version, "first": self.first}
        return type(self).__qualname__, [], values

    def describe(self) -> str:
        return f"Install pulse {self.version}, or upgrade to it"

    def state_forwards(self, app_label: str, state: Any) -> None:
        """No model of Django's changes."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        self._apply(app_label, schema_editor, install.plan)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        # An upgrade stays: the package before works against the newer database.
        if self.first:
            self._apply(app_label, schema_editor, install.removal)

    def _apply(self, app_label: str, schema_editor: Any, decide: Any) -> None:
        connection = schema_editor.connection
        if connection.vendor != "postgresql" or not router.allow_migrate(
            connection.alias, app_label
        ):
            return
        if connection.in_atomic_block:
            raise CommandError("pulse is not installed inside a transaction")
        try:
            carry_out(connection, decide)
        except install.InstallError as error:
            raise CommandError(str(error)) from error


def carry_out(connection: Any, decide: Callable[[Installed], Plan]) -> None:
    connection.ensure_connection()
    todo = decide(install.inspect(connection.connection))
    install.apply(connection.connection, todo)
