"""Completion scripts of shells, and the words that they pass to `kbroker`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

if TYPE_CHECKING:
    from click.shell_completion import ShellComplete

# Bash begins a new word after these characters, and replaces only the last word.
_WORD_BREAKS = "=:"


class BashScript(BashComplete):
    """Completion for bash, also of values after `=`; names that end with `=` get no space."""

    source_template = """\
%(complete_func)s() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            *) COMPREPLY+=("${line#*,}") ;;
        esac
    done < <(%(complete_var)s=bash_complete COMP_LINE="${COMP_LINE:0:COMP_POINT}" "$1")
    if [[ ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    @staticmethod
    def _check_version() -> None:
        """Do not start bash to find its version: the script works with bash 4.4 and newer."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words of the line, and the incomplete one."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        return words[1:], incomplete

    def complete(self) -> str:
        """Return the lines for the script: those parts of words that bash replaces."""
        args, incomplete = self.get_completion_args()
        typed = _before_last_word(incomplete)
        # click proposes values of --option=VALUE without the option.
        prefixes = [typed, typed.partition("=")[2] if typed.startswith("-") else ""]
        lines = []
        for item in self.get_completions(args, incomplete):
            prefix = next((each for each in prefixes if each and item.value.startswith(each)), "")
            lines.append(f"{item.type},{item.value.removeprefix(prefix)}")
        return "\n".join(lines)


def _before_last_word(text: str) -> str:
    return text[: max(text.rfind(each) for each in _WORD_BREAKS) + 1]


class ZshScript(ZshComplete):
    """Completion for zsh; names that end with `=` get no space."""

    source_template = """\
#compdef %(prog_name)s
%(complete_func)s() {
    local -a open open_shown names shown
    local type key help
    while IFS=$'\\t' read -r type key help; do
        case $type in
            dir) _path_files -/ ;;
            file) _path_files ;;
            *)
                [[ -n $help ]] && help="$key  -- $help" || help=$key
                if [[ $key == *= ]]; then
                    open+=("$key"); open_shown+=("$help")
                else
                    names+=("$key"); shown+=("$help")
                fi ;;
        esac
    done < <(COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \\
        %(complete_var)s=zsh_complete %(prog_name)s)
    (( $#open )) && compadd -U -S '' -l -V settings -d open_shown -a open
    (( $#names )) && compadd -U -l -V names -d shown -a names
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return one line for the script."""
        return f"{item.type}\t{item.value}\t{item.help or ''}"


SCRIPTS: tuple[type[ShellComplete], ...] = (BashScript, ZshScript)


def register_scripts() -> None:
    """Make click use these scripts."""
    for each in SCRIPTS:
        add_completion_class(each)
