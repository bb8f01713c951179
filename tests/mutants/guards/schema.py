"""How the schema is installed and upgraded, and which one is refused."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_SCHEMA: Final = "store/test_schema.py::"
_UPGRADES: Final = "store/test_upgrades.py::"
_ROLES: Final = "store/test_roles_made.py::"
_DOCTOR: Final = "store/test_doctor.py::test_schema"
_BECOME: Final = "if me.prefix is not None:\n        await become"
_GRANT: Final = "if me.prefix is not None:\n        await connection.execute(grants"

SCHEMA: Final = Guarded(
    "pulse.store.admin.schema",
    {
        _SCHEMA + "test_schema_sql_of_an_installation": [
            ("schema_sql", "if packaged.is_file():", "if False:"),
            ("schema_sql", "if packaged.is_file():", "if True:"),
        ],
        _SCHEMA + "test_an_old_server_is_refused": [
            ("ensure_schema", "if server.major * 10000 < MIN_SERVER:", "if False:"),
        ],
        _SCHEMA + "test_install": [
            ("ensure_schema", " and not install", ""),
            ("ensure_schema", "if found != SCHEMA_VERSION:", "if False:"),
            ("installed_version", "except _NOT_INSTALLED:", "except ZeroDivisionError:"),
        ],
        _SCHEMA + "test_many_installs_at_once": [
            ("_bring_up_to_date", "version = await installed_version(connection)", "version = 0"),
            ("installed_version", "async with connection.transaction():", "if True:"),
        ],
        _SCHEMA + "test_a_newer_schema_is_refused": [
            ("installed_version", "if found > SCHEMA_VERSION:", "if False:"),
            ("is_development", "RELEASES.get(version, release)", "RELEASES.get(version)"),
        ],
        _UPGRADES + "test_who_only_looks_changes_nothing": [
            ("ensure_schema", "if found != SCHEMA_VERSION and not install:", "if False:"),
            ("ensure_schema", "found != SCHEMA_VERSION and ", ""),
            ("ensure_schema", "if found else", "if True else"),
            ("ensure_schema", "if found else", "if False else"),
            ("installed_version", "if row is None:", "if False:"),
        ],
        _UPGRADES + "test_who_finds_what_he_needs_waits_for_nobody": [
            ("ensure_schema", "if found != SCHEMA_VERSION:", "if True:"),
        ],
        _UPGRADES + "test_an_upgrade_is_applied_once": [
            ("_bring_up_to_date", "if version == 0:", "if True:"),
            ("_bring_up_to_date", _BECOME, _BECOME.replace("me.prefix is not None", "True")),
            ("_bring_up_to_date", _GRANT, _GRANT.replace("me.prefix is not None", "True")),
            ("_bring_up_to_date", "range(version + 1,", "range(version + 2,"),
        ],
        _UPGRADES + "test_steps_are_taken_in_order": [
            ("_bring_up_to_date", "range(version + 1, SCHEMA_VERSION + 1)", "[SCHEMA_VERSION]"),
            ("_bring_up_to_date", "range(version + 1,", "range(2,"),
        ],
        _UPGRADES + "test_two_upgrade_at_once": [
            ("_bring_up_to_date", 'await connection.execute(STATEMENTS["schema_lock"].sql)', "pass"),
            ("_bring_up_to_date", "version = await installed_version(connection)", "version = SCHEMA_VERSION - 1"),
        ],
        _UPGRADES + "test_an_upgrade_is_whole_or_nothing": [
            ("ensure_schema", "async with connection.transaction():", "if True:"),
        ],
        _UPGRADES + "test_an_upgrade_takes_its_time": [
            (
                "_bring_up_to_date",
                'await connection.execute(STATEMENTS["schema_limits"].sql, f"{LOCK_TIMEOUT_S}s")',
                "pass",
            ),
        ],
        _UPGRADES + "test_a_schema_of_old_is_refused": [
            ("is_development", "release is None or ", ""),
            ("installed_version", 'if is_development(found, row["release"]):', "if False:"),
        ],
        _UPGRADES + "test_a_draft_is_refused": [
            ("is_development", " or release != RELEASES.get(version, release)", ""),
        ],
        _ROLES + "test_what_comes_later": [
            ("_bring_up_to_date", _BECOME, _BECOME.replace("me.prefix is not None", "False")),
            ("_bring_up_to_date", _GRANT, _GRANT.replace("me.prefix is not None", "False")),
        ],
        _ROLES + "test_who_may_not_upgrade_waits_for_who_may": [
            ("_bring_up_to_date", "if version == SCHEMA_VERSION:", "if False:"),
        ],
        _ROLES + "test_who_may_not_even_look": [
            ("_why_refused", "if found is None:", "if False:"),
            ("_why_refused", "if me.prefix is None else", "if True else"),
            ("_why_refused", "if me.prefix is None else", "if False else"),
            ("_why_refused", "if found == 0:", "if False:"),
        ],
    },
    {("", "TYPE_CHECKING"): "for the type checkers"},
)

DOCTOR: Final = Guarded(
    "pulse.store.admin.doctor",
    {_DOCTOR: [("_ask_all", ' and not schema["is_development"]', "")]},
    is_part=True,
)
FINDING: Final = Guarded(
    "pulse.ops.doctor.database",
    {
        _DOCTOR: [
            ("schema", 'if row["is_development"]:', "if False:"),
            ("schema", "if version == wanted:", "if True:"),
            ("schema", "if version > wanted:", "if False:"),
            ("schema", "if version else", "if True else"),
        ],
    },
    is_part=True,
)
