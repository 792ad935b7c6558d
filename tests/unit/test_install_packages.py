from tools.install_packages import pip_options, uv_environment


def test_uv_is_told_where_pip_looks() -> None:
    listed = r"""
:env:.default-timeout='180'
:env:.find-links='/wheels /more/wheels'
global.cert='/etc/ssl/all.crt'
global.extra-index-url='file:///one/simple\nhttps://two.example/simple'
global.find-links='/unused'
install.index-url='https://mirror.example/simple'
install.no-cache-dir='false'
"""
    assert uv_environment(pip_options(listed)) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_HTTP_TIMEOUT": "180",
        "UV_FIND_LINKS": "/wheels,/more/wheels",
        "SSL_CERT_FILE": "/etc/ssl/all.crt",
        "UV_INDEX": "file:///one/simple https://two.example/simple",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
    }


def test_options_of_other_commands_are_not_followed() -> None:
    assert pip_options("download.index-url='https://elsewhere.example'\nglobal.timeout='3.5'") == {"timeout": "3.5"}


def test_an_environment_without_configuration_needs_only_pips_way_of_choosing() -> None:
    assert uv_environment(pip_options("")) == {"UV_INDEX_STRATEGY": "unsafe-best-match"}
