package app

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdpoint/holdpoint/internal/policy"
)

// Environment resolves secrets from the process's environment and from files. Holdpoint's own settings are not among
// them: whoever writes a policy may send foreign secrets to the providers that they are for, and nothing else of this
// process to anybody.
type Environment struct{}

// ownPrefix begins the names of Holdpoint's own settings, of which some hold credentials.
const ownPrefix = "HOLDPOINT_"

// maxSecret bounds a secret file in bytes.
const maxSecret = 64 << 10

var errNoSecret = errors.New("this is no file that a secret stands in")

// Env implements policy.Secrets; an empty variable counts as missing.
func (Environment) Env(name string) (string, bool) {
	if strings.HasPrefix(name, ownPrefix) {
		return "", false
	}
	v := os.Getenv(name)
	return v, v != ""
}

// File implements policy.Secrets; a trailing newline is not part of the secret. Only regular files of at most 64 KiB are
// read, and none that the kernel makes up: /proc tells the whole environment.
func (Environment) File(path string) ([]byte, error) {
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return nil, err
	}
	for _, root := range []string{"/proc/", "/sys/"} {
		if strings.HasPrefix(real, root) {
			return nil, errNoSecret
		}
	}
	if info, err := os.Stat(real); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(errNoSecret, err) // before it is opened: a pipe would wait for a writer
	}
	f, err := os.Open(real)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err == nil && len(b) > maxSecret {
		err = errNoSecret
	}
	if err != nil {
		return nil, err
	}
	return []byte(strings.TrimRight(string(b), "\r\n")), nil
}

// withoutOwn hides the instance's secret key, wherever a policy says that it stands.
type withoutOwn struct {
	policy.Secrets
	key []byte
}

// Env implements policy.Secrets.
func (s withoutOwn) Env(name string) (string, bool) {
	v, ok := s.Secrets.Env(name)
	if ok && s.own([]byte(v)) {
		return "", false
	}
	return v, ok
}

// File implements policy.Secrets.
func (s withoutOwn) File(path string) ([]byte, error) {
	b, err := s.Secrets.File(path)
	if err == nil && s.own(b) {
		return nil, errNoSecret
	}
	return b, err
}

func (s withoutOwn) own(b []byte) bool {
	if len(s.key) == 0 {
		return false
	}
	return bytes.Contains(b, s.key) || bytes.Contains(b, []byte(base64.StdEncoding.EncodeToString(s.key)))
}
