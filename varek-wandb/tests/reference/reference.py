"""Logs a scenario with the official client, or prints the scenario with everything that is generated.

  reference.py run SCENARIO.json       in the current directory; WANDB_MODE and WANDB_BASE_URL say where to
  reference.py expand SCENARIO.json    the same scenario without `generate`

A scenario has `project`, `id`, and where it wants to: `name`, `group`, `job_type`, `notes`, `tags`, `config`,
`exit_code`, and `actions`, which are done in order. An action has one of these keys:

  log      a row; with `step` beside it, where the step is given
  summary  values for the summary
  table    {key, columns, rows}: logged as a table of its own
  artifact {name, type, description, metadata, aliases, tags, files: {path: CONTENT}, references: {path: URI}}
  alert    {title, text, level, wait_seconds}
  save     {path: CONTENT}: files of the run
  console  {stream, text}: a line that the program prints
  generate {rows: N} or {table: {key, rows: N}}: what would be too long to write down

CONTENT is {"text": ...}, {"base64": ...} or {"repeat": TEXT, "times": N}. A number that JSON lacks is
{"$float": "NaN" | "Infinity" | "-Infinity"}.
"""
import base64
import json
import os
import sys


def rows(count):
    """Rows whose values both clients compute alike: quarters and whole numbers."""
    return [{'log': {'index': i, 'score': (i % 400) / 4, 'verdict/blocked': i % 7 == 0, 'name': f'payload {i % 13}'}}
            for i in range(count)]


def table(given):
    columns = ['payload', 'blocked', 'milliseconds']
    lines = [[f'payload {i % 97}', i % 3 == 0, None if i % 11 == 0 else (i % 1000) / 8] for i in range(given['rows'])]
    return {'table': {'key': given['key'], 'columns': columns, 'rows': lines}}


def expand(scenario):
    actions = []
    for action in scenario.get('actions', []):
        generate = action.get('generate')
        if generate is None:
            actions.append(action)
        elif 'rows' in generate:
            actions += rows(generate['rows'])
        else:
            actions.append(table(generate['table']))
    return {**scenario, 'actions': actions}


def value(item):
    if isinstance(item, dict):
        if set(item) == {'$float'}:
            return float(item['$float'])
        return {key: value(inner) for key, inner in item.items()}
    return [value(inner) for inner in item] if isinstance(item, list) else item


def content(given):
    if 'text' in given:
        return given['text'].encode()
    if 'base64' in given:
        return base64.b64decode(given['base64'])
    return given['repeat'].encode() * given['times']


def write(path, given):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'wb') as file:
        file.write(content(given))


def log_artifact(wandb, run, given, place):
    artifact = wandb.Artifact(
        given['name'], type=given['type'], description=given.get('description'), metadata=given.get('metadata'))
    for path, inner in given.get('files', {}).items():
        local = os.path.join(place, path)
        write(local, inner)
        artifact.add_file(local, path)
    for path, uri in given.get('references', {}).items():
        artifact.add_reference(uri, path, checksum=False)
    run.log_artifact(artifact, aliases=given.get('aliases'), tags=given.get('tags'))


def act(wandb, run, action, place):
    if 'log' in action:
        run.log(value(action['log']), step=action.get('step'))
    elif 'summary' in action:
        run.summary.update(value(action['summary']))
    elif 'table' in action:
        given = action['table']
        run.log({given['key']: wandb.Table(columns=given['columns'], data=value(given['rows']))})
    elif 'artifact' in action:
        log_artifact(wandb, run, action['artifact'], place)
    elif 'alert' in action:
        given = action['alert']
        run.alert(given['title'], given['text'], level=given.get('level', 'INFO'), wait_duration=given.get('wait_seconds'))
    elif 'save' in action:
        for path, inner in action['save'].items():
            write(os.path.join(run.dir, path), inner)
            run.save(os.path.join(run.dir, path), base_path=run.dir, policy='end')
    elif 'console' in action:
        given = action['console']
        print(given['text'], file=sys.stderr if given.get('stream') == 'stderr' else sys.stdout, flush=True)
    else:
        raise ValueError(f'unknown action {sorted(action)}')


def main():
    command, path = sys.argv[1:]
    with open(path, encoding='utf-8') as file:
        scenario = expand(json.load(file))
    if command == 'expand':
        json.dump(scenario, sys.stdout)
        return
    import wandb
    has_console = any('console' in action for action in scenario['actions'])
    settings = wandb.Settings(
        silent=True, x_disable_stats=True, save_code=False, disable_git=True, console='wrap' if has_console else 'off')
    run = wandb.init(
        project=scenario['project'], id=scenario['id'], name=scenario.get('name'), group=scenario.get('group'),
        job_type=scenario.get('job_type'), notes=scenario.get('notes'), tags=scenario.get('tags'),
        config=scenario.get('config'), settings=settings)
    for number, action in enumerate(scenario['actions']):
        act(wandb, run, action, os.path.abspath(f'content/{number}'))
    run.finish(exit_code=scenario.get('exit_code', 0))


if __name__ == '__main__':
    main()
