package app

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A policy may name any variable and any file as a secret and any server as a provider. What belongs to Holdpoint itself
// stays here all the same.
func TestAPolicyReachesForeignSecretsOnly(t *testing.T) {
	key := []byte(strings.Repeat("k", 32))
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	encoded := base64.StdEncoding.EncodeToString(key)
	t.Setenv("CRM_TOKEN", "token")
	t.Setenv("HOLDPOINT_DB", "postgres://u:password@127.0.0.1/db")
	t.Setenv("KEY_COPY", encoded)
	s := Options{MasterKey: key}.withDefaults().Secrets

	v, ok := s.Env("CRM_TOKEN")
	require.True(t, ok)
	require.Equal(t, "token", v)
	for _, name := range []string{"HOLDPOINT_DB", "KEY_COPY", "NOT_SET"} {
		_, ok := s.Env(name)
		require.False(t, ok, name)
	}

	token := write("token", "token\r\n")
	linked := filepath.Join(dir, "linked")
	require.NoError(t, os.Symlink(token, linked))
	for _, path := range []string{token, linked} {
		b, err := s.File(path)
		require.NoError(t, err)
		require.Equal(t, "token", string(b))
	}
	environ, pipe := filepath.Join(dir, "environ"), filepath.Join(dir, "pipe")
	require.NoError(t, os.Symlink("/proc/self/environ", environ))
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, path := range []string{write("holdpoint.key", encoded+"\n"), write("raw.key", string(key)), write("long", strings.Repeat("x", maxSecret+1)),
		environ, "/proc/self/environ", "/dev/zero", pipe, dir, filepath.Join(dir, "missing")} {
		_, err := s.File(path)
		require.Error(t, err, path)
		require.NotContains(t, err.Error(), encoded)
	}
}
