"""API keys: the file, the roles, and what is never told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tamis.base.errors import InputError
from tamis.serve.keys import ROLES, Key, Keys, digest_of, read_keys, required_role
from tamis.serve.rates import Rate

SECRET = "correct-horse-battery"
DIGEST = digest_of(SECRET).hex()
TABLE = f'[[key]]\nname = "web"\nsha256 = "{DIGEST}"\nroles = ["search"]\n'


def written(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(content, encoding="utf-8")
    return path


def test_a_key_is_found_by_its_hash_or_as_it_is(tmp_path: Path) -> None:
    other = '[[key]]\nname = "ops"\nkey = "0123456789abcdef"\nroles = ["metrics", "rerank"]\nrate = 0.5\n'
    keys = read_keys(written(tmp_path, TABLE + other))
    web, ops = keys.find(SECRET), keys.find("0123456789abcdef")
    assert web == Key("web", digest_of(SECRET), frozenset({"search"}))
    assert ops is not None and (ops.name, ops.rate) == ("ops", Rate(0.5, 1.0))
    assert keys.find("") is None and keys.find(DIGEST) is None and keys.find(SECRET + "x") is None


def test_the_example_of_the_documentation_can_be_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "access.md").read_text(encoding="utf-8")
    example = page.partition('```toml title="keys.toml"\n')[2].partition("```")[0]
    assert example.count("[[key]]") == 2
    read_keys(written(tmp_path, example))


def test_upper_case_digits_of_a_hash_are_the_same_hash(tmp_path: Path) -> None:
    assert read_keys(written(tmp_path, TABLE.replace(DIGEST, DIGEST.upper()))).find(SECRET)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not a list of keys: write a table [[key]] for each key"),
        ("key = 1\n", "not a list of keys: "),
        ("[[key]\n", "not TOML ("),
        ('other = 1\n[[key]]\nname = "x"\n', "not a list of keys: "),
        (TABLE + "role = 1\n", "key 1: 'role' is not a field: use name, key, sha256, roles, rate, burst"),
        (TABLE.replace('"web"', '"a b"'), "key 1: not a valid name: "),
        (TABLE.replace('"web"', '"a\\nb"'), "key 1: not a valid name: "),
        (TABLE.replace('"web"', "7"), "key 1: not a valid name: "),
        (TABLE + f'key = "{SECRET}"\n', "key 1: neither or both of key and sha256: "),
        (TABLE.replace(f'sha256 = "{DIGEST}"\n', ""), "key 1: neither or both of key and sha256: "),
        (TABLE.replace(DIGEST, DIGEST[:-1]), "key 1: sha256 is not 64 hexadecimal digits: "),
        (TABLE.replace(f'sha256 = "{DIGEST}"', 'key = "s3cret"'), "key 1: the key is shorter than 16"),
        (TABLE.replace(f'sha256 = "{DIGEST}"', f'key = "é{SECRET}"'), "key 1: the key is not printable"),
        (TABLE.replace(f'sha256 = "{DIGEST}"', "key = 1234567890123456"), "key 1: the key is not printable"),
        (TABLE.replace('["search"]', "[]"), "key 1: not a valid list of roles: give a list of search, "),
        (TABLE.replace('["search"]', '"search"'), "key 1: not a valid list of roles: "),
        (TABLE.replace('["search"]', '["root"]'), "key 1: not a valid list of roles: "),
        (TABLE.replace('["search"]', "[[]]"), "key 1: not a valid list of roles: "),
        (TABLE + "rate = 0\n", "key 1: rate is not a number above 0: "),
        (TABLE + "rate = inf\n", "key 1: rate is not a number above 0: "),
        (TABLE + "rate = nan\n", "key 1: rate is not a number above 0: "),
        (TABLE + "rate = true\n", "key 1: rate is not a number above 0: "),
        (TABLE + "burst = 5\n", "key 1: burst needs a rate, and is 1 or more: "),
        (TABLE + "rate = 5\nburst = 0.5\n", "key 1: burst needs a rate, and is 1 or more: "),
        (TABLE + TABLE.replace("web", "web2"), "two keys have the same key: "),
        (TABLE + TABLE.replace(DIGEST, "0" * 64), "two keys have the same name: "),
    ],
)
def test_a_file_that_is_wrong_is_told_and_its_keys_are_not(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_keys(written(tmp_path, content))
    message = str(caught.value)
    assert f"keys.toml: {words}" in message and "\n" not in message
    assert not any(secret in message for secret in (SECRET, "s3cret", DIGEST))


def test_a_role_opens_its_own_routes_alone() -> None:
    paths = {"search": "/documents/a/b", "rerank": "/v1/rerank", "metrics": "/metrics"}
    for role in ROLES:
        key = Key("one", b"", frozenset({role}))
        assert [name for name, path in paths.items() if key.may(required_role(path))] == [role]
        assert key.may(required_role("/info"))
    assert all(Key("every", b"").may(required_role(path)) for path in paths.values())


def test_every_key_is_compared_whether_one_was_equal_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of comparisons does not depend on what is sent."""
    import hmac

    compared = []
    plain = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or plain(a, b))
    keys = Keys([Key(str(number), digest_of(f"{number:016}")) for number in range(5)])
    assert keys.find(f"{0:016}") is not None and len(compared) == 5
    assert keys.find("") is None and len(compared) == 10
