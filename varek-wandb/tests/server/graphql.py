"""A small GraphQL: parses a document and runs one operation against plain dictionaries of resolvers.

It knows selection sets, aliases, variables with defaults, fragments, @include and @skip, and all literals. A field
that no resolver knows is noted and answered with null, so that a query of a newer client does not end a test.
"""
import json
import re
from typing import Any, Callable

TOKEN = re.compile(
    r'(?P<ws>[\s,\ufeff]+|\#[^\n]*)'
    r'|(?P<block>"""(?:\\"""|.)*?""")'
    r'|(?P<string>"(?:\\.|[^"\\])*")'
    r'|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)'
    r'|(?P<name>[_A-Za-z]\w*)'
    r'|(?P<punctuation>\.\.\.|[!$()\[\]{}:=@|&])',
    re.S,
)


class GraphQlError(Exception):
    """What the answer's `errors` say."""


class Document:
    """A parsed document. `bind` comes before `run`."""

    def __init__(self, text: str):
        self.tokens: list[tuple[str, str]] = []
        place = 0
        while place < len(text):
            match = TOKEN.match(text, place)
            if not match:
                raise GraphQlError(f'syntax error at {place}: {text[place:place + 20]!r}')
            place = match.end()
            if match.lastgroup != 'ws':
                self.tokens.append((match.lastgroup or '', match.group()))
        self.tokens.append(('end', ''))
        self.at = 0
        self.operations: list[dict] = []
        self.fragments: dict[str, list] = {}
        self.variables: dict[str, Any] = {}
        while self.peek():
            self.definition()

    # Tokens.

    def peek(self) -> str:
        return self.tokens[self.at][1]

    def kind(self) -> str:
        return self.tokens[self.at][0]

    def take(self) -> str:
        if self.kind() == 'end':
            raise GraphQlError('the document ends too early')
        self.at += 1
        return self.tokens[self.at - 1][1]

    def expect(self, word: str) -> None:
        if self.peek() != word:
            raise GraphQlError(f'expected {word!r}, found {self.peek()!r}')
        self.take()

    def maybe(self, word: str) -> bool:
        if self.peek() != word:
            return False
        self.take()
        return True

    # Grammar.

    def definition(self) -> None:
        if self.maybe('fragment'):
            name = self.take()
            self.expect('on')
            self.take()
            self.directives()
            self.fragments[name] = self.selection()
            return
        operation: dict[str, Any] = {'type': 'query', 'name': None, 'variables': {}}
        if self.peek() != '{':
            operation['type'] = self.take()
            if operation['type'] not in ('query', 'mutation', 'subscription'):
                raise GraphQlError(f'unexpected {operation["type"]!r}')
            if self.kind() == 'name':
                operation['name'] = self.take()
            if self.maybe('('):
                while not self.maybe(')'):
                    self.expect('$')
                    name = self.take()
                    self.expect(':')
                    type_ = self.type()
                    default = self.value() if self.maybe('=') else None
                    operation['variables'][name] = (type_, default)
            self.directives()
        operation['selection'] = self.selection()
        self.operations.append(operation)

    def type(self) -> str:
        if self.maybe('['):
            text = '[' + self.type() + ']'
            self.expect(']')
        else:
            text = self.take()
        return text + '!' if self.maybe('!') else text

    def value(self) -> tuple[str, Any]:
        kind, word = self.tokens[self.at]
        self.take()
        if word == '$':
            return ('variable', self.take())
        if word == '[':
            items = []
            while not self.maybe(']'):
                items.append(self.value())
            return ('list', items)
        if word == '{':
            fields = {}
            while not self.maybe('}'):
                name = self.take()
                self.expect(':')
                fields[name] = self.value()
            return ('object', fields)
        if kind in ('string', 'number'):
            return ('literal', json.loads(word))
        if kind == 'block':
            return ('literal', word[3:-3])
        return ('literal', {'true': True, 'false': False, 'null': None}.get(word, word))

    def arguments(self) -> dict[str, tuple[str, Any]]:
        found = {}
        if self.maybe('('):
            while not self.maybe(')'):
                name = self.take()
                self.expect(':')
                found[name] = self.value()
        return found

    def directives(self) -> list[tuple[str, dict]]:
        found = []
        while self.maybe('@'):
            name = self.take()
            found.append((name, self.arguments()))
        return found

    def selection(self) -> list[tuple]:
        self.expect('{')
        found: list[tuple] = []
        while not self.maybe('}'):
            if self.maybe('...'):
                if self.maybe('on'):
                    self.take()
                    directives = self.directives()
                    found.append(('inline', directives, self.selection()))
                elif self.peek() in ('{', '@'):
                    directives = self.directives()
                    found.append(('inline', directives, self.selection()))
                else:
                    name = self.take()
                    found.append(('fragment', self.directives(), name))
                continue
            name = alias = self.take()
            if self.maybe(':'):
                name = self.take()
            arguments = self.arguments()
            directives = self.directives()
            below = self.selection() if self.peek() == '{' else None
            found.append(('field', directives, alias, name, arguments, below))
        return found

    # Running.

    def pick(self, name: str | None = None) -> dict:
        """The operation of that name, or the first one."""
        for operation in self.operations:
            if name and operation['name'] == name:
                return operation
        if not self.operations:
            raise GraphQlError('no operation')
        return self.operations[0]

    @staticmethod
    def roots(operation: dict) -> list[str]:
        """The fields at the top of an operation."""
        return [part[3] for part in operation['selection'] if part[0] == 'field']

    def bind(self, operation: dict, variables: dict | None) -> None:
        given = variables or {}
        self.variables = {}
        for name, (type_, default) in operation['variables'].items():
            if name in given:
                self.variables[name] = given[name]
            elif default is not None:
                self.variables[name] = self.evaluate(default)
            if type_.endswith('!') and self.variables.get(name) is None:
                raise GraphQlError(f'variable ${name} of required type {type_!r} was not provided')

    def evaluate(self, value: tuple[str, Any]) -> Any:
        kind, inner = value
        if kind == 'literal':
            return inner
        if kind == 'list':
            return [self.evaluate(item) for item in inner]
        if kind == 'object':
            # A field whose variable was left out is left out too.
            return {name: self.evaluate(item) for name, item in inner.items()
                    if not (item[0] == 'variable' and item[1] not in self.variables)}
        return self.variables.get(inner)

    def kept(self, directives: list[tuple[str, dict]]) -> bool:
        for name, arguments in directives:
            condition = bool(self.evaluate(arguments['if'])) if 'if' in arguments else True
            if (name == 'include' and not condition) or (name == 'skip' and condition):
                return False
        return True

    def run(self, selection: list[tuple], resolvers: dict[str, Any], unknown: list[str], path: str = '') -> dict:
        answer: dict[str, Any] = {}
        for part in selection:
            if not self.kept(part[1]):
                continue
            if part[0] == 'inline':
                answer.update(self.run(part[2], resolvers, unknown, path))
                continue
            if part[0] == 'fragment':
                answer.update(self.run(self.fragments[part[2]], resolvers, unknown, path))
                continue
            _, _, alias, name, arguments, below = part
            if name == '__typename':
                answer[alias] = 'X'
                continue
            if name not in resolvers:
                unknown.append(path + name)
                answer[alias] = None
                continue
            value: Any = resolvers[name]
            if callable(value):
                resolver: Callable[[dict], Any] = value
                value = resolver({key: self.evaluate(item) for key, item in arguments.items()})
            answer[alias] = self.shape(value, below, unknown, f'{path}{name}.')
        return answer

    def shape(self, value: Any, below: list[tuple] | None, unknown: list[str], path: str) -> Any:
        if value is None or below is None:
            return value
        if isinstance(value, list):
            return [self.shape(item, below, unknown, path) for item in value]
        return self.run(below, value, unknown, path)
