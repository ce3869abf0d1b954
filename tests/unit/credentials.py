"""Examples of credentials, assembled from pieces: none was ever real, and none is written out in this file."""

from typing import NamedTuple

__all__ = ["EVERY", "Credential", "letters"]


class Credential(NamedTuple):
    """A text with a credential, and the part of it that must not be shown."""

    name: str
    text: str
    hides: str


def letters(seed: int, length: int, alphabet: str = "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0z") -> str:
    """Return random-looking letters, different for each seed."""
    found, state = [], seed * 7919 + 17
    for _ in range(length):
        state = (state * 1103515245 + 12345) % 2**31
        found.append(alphabet[(state >> 8) % len(alphabet)])
    return "".join(found)


HEX, UPPER = "0123456789abcdef", "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


def _made() -> list[Credential]:
    seeds = iter(range(1, 1000))

    def secret(length: int, alphabet: str | None = None) -> str:
        seed = next(seeds)
        return letters(seed, length) if alphabet is None else letters(seed, length, alphabet)

    def case(name: str, before: str, length: int, after: str = "", alphabet: str | None = None) -> Credential:
        hidden = secret(length, alphabet)
        return Credential(name, f"{before}{hidden}{after}", hidden)

    header = "ey" + "J" + secret(20)
    return [
        case(
            "limpet", "token: l" + "p_main_4hq2vx0k7m3c_", 52, "_0123abcd", alphabet="0123456789abcdefghjkmnpqrstvwxyz"
        ),
        case("openai", "the key is sk" + "-proj-", 48, " today"),
        case("openai_old", "sk" + "-", 48),
        case("anthropic", "x-key sk" + "-ant-api03-", 80),
        case("github", "remote: gh" + "p_", 36, "\n"),
        case("github_app", "gh" + "s_", 36),
        case("github_fine", "github" + "_pat_", 60),
        case("gitlab", "gl" + "pat-", 20),
        case("slack", "xox" + "b-123456789012-", 24),
        case("slack_hook", "https://hooks." + "slack.com/services/T0001/B0002/", 24),
        case("telegram", "bot 123456789:A" + "A", 33),
        case("stripe", "sk" + "_live_", 24),
        case("stripe_hook", "wh" + "sec_", 32),
        case("aws_id", "AK" + "IA", 16, alphabet=UPPER),
        case("aws_secret", "aws_secret_access_key = ", 40),
        case("aws_json", '{"SecretAccessKey": "', 40, '"}'),
        case("google", "AI" + "za", 35),
        case("google_oauth", "ya" + "29.", 60),
        case("npm", "//registry.example/:_authToken=np" + "m_", 36),
        case("pypi", "py" + "pi-", 90),
        case("hugging_face", "h" + "f_", 34),
        case("sendgrid", "S" + f"G.{secret(22)}.", 43),
        case("twilio", "S" + "K", 32, alphabet=HEX),
        case("mailgun", "k" + "ey-", 32, alphabet=HEX),
        case("digitalocean", "do" + "p_v1_", 64, alphabet=HEX),
        case("shopify", "shp" + "at_", 32, alphabet=HEX),
        case("databricks", "da" + "pi", 32, alphabet=HEX),
        case("vault", "hv" + "s.", 32),
        case("groq", "g" + "sk_", 52),
        case("azure", "AccountName=shop;Account" + "Key=", 64, "==;EndpointSuffix=core.example"),
        case("azure_sas", "https://shop.example/a?sv=2024&si" + "g=", 44, "&se=1"),
        case("aws_signed", "https://b.example/k?X-Amz-Signa" + "ture=", 64, "", HEX),
        case("jwt", f"{header}.ey" + f"J{secret(30)}.", 43),
        case("pem", "-----BEGIN RSA PRIVATE" + " KEY-----\nMII", 120, "\n-----END RSA PRIVATE" + " KEY-----\n"),
        case("pem_in_json", '"-----BEGIN PRIVATE' + " KEY-----\\nMII", 120, "\\n-----END PRIVATE" + ' KEY-----\\n"'),
        case("pem_cut", "-----BEGIN EC PRIVATE" + " KEY-----\nMII", 60),
        case("bearer", "Authorization: Bearer ", 40),
        case("basic", "> Authorization: Basic ", 24, "=="),
        case("header_repr", "{'authorization': 'Token ", 40, "'}"),
        case("bearer_alone", "sent bearer ", 40, ", got 401"),
        case("api_key_header", "X-Api-Key: ", 24),
        case("set_cookie", "Set-Cookie: sid=", 24, "; Path=/; HttpOnly"),
        case("cookie_quoted", 'Cookie: a=b; sid="', 24, '"; theme=dark'),
        case("cookie_repr", "{'Cookie': 'sid=", 24, "; theme=dark'}"),
        case("password", "cannot log in with password=", 10),
        case("password_yaml", "password: ", 12, "1a\nuser: ann"),
        case("password_json", '{"user": "ann", "password": "', 10, '"}'),
        case("password_in_text", r"{\"password\": \"", 10, r"\"}"),
        case("password_code", "connect(host='db', password='", 10, "')"),
        case("password_bytes", "login(password=b'", 10, "')"),
        case("query", "GET https://shop.example/?user=ann&access_token=", 20, "&page=2"),
        case("env", "PATH=/bin\nDB_PASSWORD=", 14, "\nHOME=/root"),
        case("env_repr", "environ({'HOME': '/root', 'SHOP_API_KEY': '", 14, "'})"),
        case("url", "postgresql://ann:", 14, "@db.example/shop"),
        case("url_without_user", "redis://:", 14, "@cache.example"),
        case("url_token", "https://", 32, "@errors.example/1", HEX),
        case("option", "curl --token ", 16, " https://shop.example"),
        case("odd_password", "password=$/", 12, "{"),
        case("slash_secret", "aws_secret_access_key=/", 39),
        case("sql", "ALTER USER shop PASSWORD '", 14, "'"),
        case("client_secret", "client_secret=", 20, "&grant_type=x"),
    ]


EVERY = _made()
