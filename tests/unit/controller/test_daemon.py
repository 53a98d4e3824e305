"""Whom the controller runs as."""

import os
import pwd

import pytest

from slurm_plugin.controller.daemon import check_user
from slurm_plugin.errors import ConfigError


def test_controller_of_another_user_than_pool_yaml_has_does_not_start() -> None:
    """Clients make their munge credentials for that user: nobody else can read them."""
    check_user(pwd.getpwuid(os.geteuid()).pw_name)
    other = next(entry.pw_name for entry in pwd.getpwall() if entry.pw_uid != os.geteuid())
    with pytest.raises(ConfigError, match=f"pool.yaml says '{other}'") as refused:
        check_user(other)
    assert f"User={other}" in refused.value.hint
    with pytest.raises(ConfigError, match="there is no user"):
        check_user("no-such-user")
