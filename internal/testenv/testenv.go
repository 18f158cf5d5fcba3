// Package testenv gives tests the real services that they talk to: PostgreSQL, PgBouncer, an SMTP server, a browser,
// and genuine webhook payloads. Only tests import it.
//
// Every service listens on loopback only, on a port and in a directory of its own, and ends with the test (PostgreSQL:
// with the test binary), even when that is killed. A service that cannot be had fails the test and says what to
// install; nothing is ever skipped, because a test that did not run proves nothing. scripts/deps.sh installs all of it.
package testenv

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

const (
	startLimit   = 30 * time.Second      // from start to the first answer, on a machine that is busy with other tests
	pollInterval = 20 * time.Millisecond // between two looks at a condition
)

// guard runs one service and outlives the test process by just enough to clean up: it stops the service when its
// standard input closes, which the kernel does however the test process ends, and then removes the directory.
// Arguments: directory, stop signal, command.
const guard = `
dir=$1 signal=$2; shift 2
exec 3<&0
"$@" </dev/null 3<&- &
service=$!
{ read -r _; kill -s "$signal" "$service"; } <&3 3<&- 2>/dev/null &
watcher=$!
exec 3<&-
wait "$service"
kill "$watcher" 2>/dev/null
cd / && rm -rf "$dir"
`

// service is one running server below its guard.
type service struct {
	cmd    *exec.Cmd
	leash  *os.File // closing it stops the service; held for as long as the service is wanted
	reaped bool
}

// start runs argv below a guard in dir, as the owner of dir, and returns when ready answers nil. It fails when the
// service ends before that or startLimit has passed, with the last lines of its log.
func start(dir string, owner *syscall.Credential, stop string, argv []string, ready func() error) (*service, error) {
	logPath := filepath.Join(dir, "service.log")
	log, err := os.Create(logPath)
	if err != nil {
		return nil, fmt.Errorf("create the service log: %w", err)
	}
	defer log.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open the leash: %w", err)
	}
	defer read.Close()

	cmd := exec.Command("/bin/sh", append([]string{"-c", guard, "guard", dir, stop}, argv...)...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, read, log, log
	// A group of its own keeps an interrupt from the terminal away, so that the guard can do its work.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: owner}
	if err := cmd.Start(); err != nil {
		write.Close()
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	s := &service{cmd: cmd, leash: write}
	tail := func() string { return "" }
	if body, err := os.Open(logPath); err == nil { // opened now: the guard removes the directory at its end
		defer body.Close()
		tail = func() string { return lastBytes(body, 2000) }
	}
	var last error
	for deadline := time.Now().Add(startLimit); time.Now().Before(deadline); time.Sleep(pollInterval) {
		if last = ready(); last == nil {
			return s, nil
		}
		if s.ended() {
			write.Close()
			return nil, fmt.Errorf("%s ended at its start: %s", argv[0], tail())
		}
	}
	s.stop()
	return nil, fmt.Errorf("%s does not answer after %s: %w; its log ends: %s", argv[0], startLimit, last, tail())
}

// ended reports whether the guard is gone. It asks without waiting, and without a goroutine that would outlive tests
// which look for leaked ones.
func (s *service) ended() bool {
	if s.reaped {
		return true
	}
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(s.cmd.Process.Pid, &status, syscall.WNOHANG, nil)
	s.reaped = pid == s.cmd.Process.Pid || errors.Is(err, syscall.ECHILD)
	return s.reaped
}

// stop ends the service and returns when it and its directory are gone.
func (s *service) stop() {
	s.leash.Close()
	if !s.reaped {
		_ = s.cmd.Wait() // the exit status of a stopped server says nothing
	}
}

// lastBytes returns up to n bytes from the end of f.
func lastBytes(f *os.File, n int64) string {
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	buf := make([]byte, min(n, info.Size()))
	read, _ := f.ReadAt(buf, info.Size()-int64(len(buf)))
	return string(buf[:read])
}

// unprivileged returns the identity for servers that refuse to run as root: the user postgres, else nobody, when the
// test runs as root; nil, which means the present user, otherwise.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("read the ids of user %s: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("running as root and there is neither a user postgres nor nobody to run a database server as")
}

// ownDir makes a directory below base that only owner may enter.
func ownDir(base, name string, owner *syscall.Credential) (string, error) {
	dir, err := os.MkdirTemp(base, "holdpoint-"+name+"-")
	if err != nil {
		return "", fmt.Errorf("make a directory for %s: %w", name, err)
	}
	if owner != nil {
		if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
			return "", fmt.Errorf("hand the directory for %s over: %w", name, err)
		}
	}
	return dir, nil
}

// freePort returns a loopback port that nothing listens on at this moment. Another process may take it before the
// caller does; the caller then sees its service end at its start and tries again with another.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// attempts is how often a service is started before its failure to start is believed: twice covers a port that was
// taken in between.
const attempts = 3

// retry calls f until it succeeds, at most attempts times, and returns its last error.
func retry(f func() error) (err error) {
	for range attempts {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}

// repository returns the directory of go.mod, upwards from the working directory, which go test sets to that of the
// package.
func repository(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatalf("testenv: find the working directory: %v", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatalf("testenv: no go.mod above the working directory; run the test inside the repository")
		}
		dir = parent
	}
}
