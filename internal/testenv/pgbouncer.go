package testenv

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// PgBouncer starts a PgBouncer in front of the server of dsn, which is one that Postgres returned, and returns the same
// URL through it. It pools by transaction, keeps no prepared statements and accepts no start-up parameter beyond its
// own few: whatever rests on a session fails, as behind the strictest pooler an operator may run. It stops at the end
// of the test.
func PgBouncer(t testing.TB, dsn string) string {
	t.Helper()
	target, err := url.Parse(dsn)
	if err != nil {
		t.Fatalf("testenv: read the database URL: %v", err)
	}
	var through string
	err = retry(func() error {
		s, pooled, err := startPgBouncer(target)
		if err == nil {
			through = pooled
			t.Cleanup(s.stop)
		}
		return err
	})
	if err != nil {
		t.Fatalf("testenv: no PgBouncer, and tests may not pass without it: %v", err)
	}
	return through
}

func startPgBouncer(target *url.URL) (*service, string, error) {
	bin, err := lookPath("pgbouncer", "/usr/sbin/pgbouncer")
	if err != nil {
		return nil, "", err
	}
	owner, err := unprivileged() // it refuses root, too
	if err != nil {
		return nil, "", err
	}
	dir, err := ownDir(os.TempDir(), "pgbouncer", owner)
	if err != nil {
		return nil, "", err
	}
	fail := func(err error) (*service, string, error) { return nil, "", errors.Join(err, os.RemoveAll(dir)) }
	port, err := freePort()
	if err != nil {
		return fail(err)
	}

	server := fmt.Sprintf("host=%s port=%s user=%s", target.Hostname(), target.Port(), target.User.Username())
	if password, set := target.User.Password(); set {
		server += fmt.Sprintf(" password='%s'", strings.ReplaceAll(password, "'", "''"))
	}
	settings := []string{
		"[databases]", "* = " + server,
		"[pgbouncer]", "listen_addr = 127.0.0.1", fmt.Sprintf("listen_port = %d", port), "unix_socket_dir =",
		"auth_type = any", "pool_mode = transaction", "max_client_conn = 1000", "default_pool_size = 20",
	}
	if keepsStatements(bin) {
		settings = append(settings, "max_prepared_statements = 0")
	}
	config := filepath.Join(dir, "pgbouncer.ini")
	// The file may hold a password: only the directory's owner comes near it.
	if err := os.WriteFile(config, []byte(strings.Join(settings, "\n")+"\n"), 0o644); err != nil {
		return fail(fmt.Errorf("write pgbouncer.ini: %w", err))
	}

	pooled := *target
	pooled.Host = "127.0.0.1:" + strconv.Itoa(port)
	s, err := start(dir, owner, "TERM", []string{bin, config}, func() error { return answers(pooled.String()) })
	if err != nil {
		return fail(err)
	}
	return s, pooled.String(), nil
}

var bouncerVersion = regexp.MustCompile(`PgBouncer (\d+)\.(\d+)`)

// keepsStatements reports whether this PgBouncer knows max_prepared_statements (since 1.21); an older one never keeps
// any and refuses the setting.
func keepsStatements(bin string) bool {
	out, err := exec.Command(bin, "--version").Output()
	m := bouncerVersion.FindSubmatch(out)
	if err != nil || m == nil {
		return false
	}
	major, _ := strconv.Atoi(string(m[1])) // digits, by the pattern
	minor, _ := strconv.Atoi(string(m[2]))
	return major > 1 || minor >= 21
}

// lookPath finds a program on the PATH or at one of the usual places beside it.
func lookPath(name string, usual ...string) (string, error) {
	for _, candidate := range append([]string{name}, usual...) {
		if path, err := exec.LookPath(candidate); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is missing; run scripts/deps.sh", name)
}
