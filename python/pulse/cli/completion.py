"""completion: the script that completes the verbs and options of pulse in a shell.

command.py calls answers() first, because the script calls pulse to complete a word.
"""

import os

import click

VARIABLE = "_PULSE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    In your ~/.bashrc: eval "$(pulse completion bash)".
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    print(found(root, {}, "pulse", VARIABLE).source())


def answers(root: click.Command) -> bool:
    """Return whether a shell has asked for a completion, and print the answer."""
    asked = os.environ.get(VARIABLE)
    if not asked:
        return False
    from click.shell_completion import shell_complete

    shell_complete(root, {}, "pulse", VARIABLE, asked)
    return True
