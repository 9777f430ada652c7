"""web: the operator's page and its HTTP API.

The verb reads its options, binds the port and serves pulse.web.create_app.
"""

import sys
from pathlib import Path

import click

from pulse.cli import queries
from pulse.cli.problems import USAGE, Problem
from pulse.cli.session import Row, Session, with_session

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8077,
    show_default=True,
    help="0 takes any free port.",
)
@click.option(
    "--token-file",
    type=FILE,
    help="Lines `token` or `token role`; default: PULSE_WEB_TOKEN.",
)
@click.option("--user-header", help="A proxy names the user in this header.")
@click.option(
    "--trusted-proxy", multiple=True, help="Its address or network; default: loopback."
)
@click.option("--user-roles", type=FILE, help="Lines `user role` for --user-header.")
@click.option("--allow-host", multiple=True, help="Answer to this host name as well.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
)
@with_session
def web(
    session: Session,
    host: str,
    port: int,
    token_file: Path | None,
    user_header: str | None,
    trusted_proxy: tuple[str, ...],
    user_roles: Path | None,
    allow_host: tuple[str, ...],
    log_level: str,
) -> None:
    """Serve the operator's page and its HTTP API until Ctrl-C.

    It answers this machine only, unless --host names another address: then with
    tokens or behind a proxy that authenticates. Requests have the rights of the role
    of the DSN, or of the role that the token or the user was given.
    """
    try:
        from pulse.web import create_app, serving
        from pulse.web.access import files, options
    except ImportError as error:
        raise Problem(
            "the web page needs more packages",
            str(error),
            'pip install "pgpulse[web]"',
            USAGE,
        ) from error

    session.log(log_level)
    try:
        authenticate, tokens = options.configured(
            token_file=token_file,
            user_header=user_header,
            trusted_proxies=trusted_proxy,
            user_roles=user_roles,
            allow_hosts=allow_host,
        )
        listening = serving.bind(host, port, authenticate)
    except files.BadConfiguration as error:
        what, _, remedy = str(error).partition("\n")
        raise Problem(what, remedy=remedy, code=USAGE) from error
    with listening:
        roles = session.gather(lambda node: node.rows(queries.WHO))
        session.close()
        app = create_app(
            [node.dsn for node in session.nodes] or session.dsn,
            authenticate=authenticate,
            tokens=tokens,
            allow_hosts=allow_host,
        )
        where = serving.address(listening)
        if session.as_json:
            found = {"nodes": roles} if session.nodes else roles[0]
            session.print_json({"url": where, **found})
        else:
            session.say(
                f"pulse web on {where}\n"
                + "".join(f"  role      {role(row)}\n" for row in roles)
                + f"  sign in   {sign_in(tokens is not None, user_header)}\n"
                "Ctrl-C stops it."
            )
        sys.stdout.flush()
        try:
            serving.serve(app, listening, log_level)
        except KeyboardInterrupt:
            session.say("stopped")


def role(row: Row) -> str:
    node = f", node {row['node']}" if "node" in row else ""
    return f"{row['role']} in database {row['database']}{node}"


def sign_in(by_token: bool, header: str | None) -> str:
    ways = (["a token"] if by_token else []) + (
        [f"the header {header}"] if header else []
    )
    return " or ".join(ways) or "not needed: it answers this machine only"
