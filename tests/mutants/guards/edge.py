"""What is looked at before anybody may come in: where it listens, certificates, saved passwords, the command line."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_TCP: Final = "process/test_tcp.py::"
_LINE: Final = "process/test_commandline.py::"
_REACHED: Final = _TCP + "TestMistakes::test_what_other_machines_reach"
_FILES: Final = _TCP + "TestMistakes::test_certificates"
_LOGIN: Final = _TCP + "TestCommands::test_login"

EDGE: Final = Guarded(
    "pulse_supervisor.preflight",
    {
        "unit/test_readable_secrets.py::test_a_config_file": [
            ("_if_readable", "stat.S_IROTH", "stat.S_IRGRP"),
            ("_if_readable", "if path.stat().st_mode & stat.S_IROTH:", "if True:"),
            ("readable_secrets", "if settings.config is not None:", "if False:"),
        ],
        "unit/test_readable_secrets.py::test_a_key": [
            ("readable_secrets", "if settings.tls_key is not None:", "if False:"),
        ],
        _REACHED: [
            ("_exposed", " or addresses.is_loopback(where[0])", ""),
            ("_exposed", " or settings.listen_insecure", ""),
            ("_exposed", "where is None or ", ""),
            ("_exposed", "if settings.tls_cert is None:", "if False:"),
            ("_exposed", "if settings.auth_users is None and settings.tls_client_ca is None:", "if False:"),
            ("_exposed", "settings.auth_users is None and ", ""),
            ("_exposed", " and settings.tls_client_ca is None", ""),
            ("check_edge", "settings.tls_cert is not None and settings.tls_key is not None", "True"),
        ],
        _FILES: [
            (
                "check_edge",
                "tls.server_context(settings.tls_cert, settings.tls_key, settings.tls_client_ca)",
                "pass",
            ),
        ],
        _TCP + "TestMistakes::test_hashes_without_bcrypt": [
            ("check_edge", " and parse_users(settings.auth_users).has_hashes", ""),
            ("check_edge", "settings.auth_users is not None and ", ""),
            ("_check_bcrypt", 'if importlib.util.find_spec("bcrypt") is None:', "if False:"),
        ],
    },
    is_part=True,
)
TLS: Final = Guarded(
    "pulse.security.tls",
    {
        _TCP + "test_client_certificates": [
            ("server_context", "context.verify_mode = ssl.CERT_REQUIRED", "pass"),
            ("server_context", '_trust(context, client_ca, "tls_client_ca")', "pass"),
            ("client_context", "_load(context, cert, key or cert)", "pass"),
        ],
        _TCP + "test_a_certificate_is_taken_anew": [
            ("client_context", "ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)", "ssl.SSLContext(ssl.PROTOCOL_TLS)"),
        ],
        _TCP + "test_who_logs_in_is_served": [
            ("client_context", '_trust(context, ca, "PULSE_TLS_CA")', "pass"),
        ],
        _FILES: [
            ("_load", "_check_readable(path)", "pass"),
            ("_load", "context.load_cert_chain(cert, key, no_password)", "context.load_cert_chain(cert, key, 'x')"),
            ("_load", "except ssl.SSLError as error:", "except KeyError as error:"),
            ("_trust", "_check_readable(ca)", "pass"),
            ("_trust", "except ssl.SSLError:", "except KeyError:"),
        ],
    },
    is_part=True,
)
LOGIN: Final = Guarded(
    "pulse.client.login",
    {
        _LOGIN: [
            ("logged_in", "found.st_mode & _OTHERS or ", ""),
        ],
        "unit/test_login.py::test_a_file_of_another_account_is_not_believed": [
            ("logged_in", " or found.st_uid != os.geteuid()", ""),
        ],
        "unit/test_login.py::test_what_is_no_saved_login": [
            ("logged_in", "except (OSError, ValueError) as error:", "except KeyError as error:"),
            ("logged_in", "not isinstance(address, str) or ", ""),
            ("logged_in", " or not all(isinstance(value, str) for value in words.values())", ""),
        ],
        "unit/test_login.py::test_any_password_comes_back": [
            ("_quoted", 'ord(one) < ord(" ") or ', ""),
            ("_quoted", 'one in {\'"\', "\\\\", "\\x7f"}', "False"),
        ],
        "unit/test_login.py::test_a_file_is_written_whole_or_not_at_all": [
            ("save", "Path(made).replace(path)", "path.write_text(text)"),
            ("save", "Path(made).unlink(missing_ok=True)", "pass"),
        ],
        "unit/test_login.py::test_a_password_that_is_no_unicode": [
            ("save", "except BaseException:", "except OSError:"),
            ("save", "except UnicodeEncodeError:", "except KeyError:"),
        ],
    },
    is_part=True,
)
SERVERS: Final = Guarded(
    "pulse.client.discovery",
    {
        "unit/test_plain_passwords.py::test_of_the_environment": [
            ("refuse_to_show_password", "server.scheme != TLS and ", ""),
            ("refuse_to_show_password", " and not addresses.is_loopback(server.host)", ""),
            ("_remote", " and not told_to_show(env)", ""),
            ("_remote", "if password != saved.password and not told_to_show(env):", "if False:"),
            ("told_to_show", "if said not in _FLAGS:", "if False:"),
        ],
        "unit/test_plain_passwords.py::test_of_a_saved_login": [
            ("_remote", "password != saved.password and ", ""),
            ("refuse_to_show_password", "server.login.password is not None and ", ""),
        ],
    },
    is_part=True,
)
SAVING: Final = Guarded(
    "pulse.cli.admin.login",
    {
        "unit/test_plain_passwords.py::test_to_be_saved": [
            ("login", "user is not None and not insecure and not told_to_show(os.environ)", "False"),
            ("login", "not insecure and ", ""),
            ("login", "user is not None and not insecure", "not insecure"),
        ],
    },
    is_part=True,
)
SOCKETS: Final = Guarded(
    "pulse_supervisor.sockets",
    {
        "process/test_access.py::test_the_sockets_are_there_for_all_only_where_others_may_come": [
            ("open_sockets", "_SHARED_MODE if shared else _OWN_MODE", "_SHARED_MODE"),
            ("open_sockets", "path.chmod(_SHARED_MODE if shared else _OWN_MODE)", "pass"),
        ],
        "process/test_supervisor_places.py::test_sockets_whose_directory_was_removed": [
            ("Sockets.put_back", "return back", "return self.nameless()"),
        ],
    },
    is_part=True,
)
COMMAND_LINE: Final = Guarded(
    "pulse.security.hide_password",
    {
        _LINE + "test_what_has_none_stays": [
            ("hide_password", "any(redact_dsn(dsn) != dsn for dsn in dsns)", "True"),
        ],
        _LINE + "test_a_command_hides_it": [
            ("hide_password", "any(redact_dsn(dsn) != dsn for dsn in dsns)", "False"),
            ("without_dsn", 'value if equals else next(rest, "")', "value"),
        ],
        _LINE + "test_what_is_behind_two_dashes_stays": [
            ("without_dsn", "kept += rest", "pass"),
            ("without_dsn", 'next(rest, "")', "next(rest)"),
        ],
    },
    is_part=True,
)
