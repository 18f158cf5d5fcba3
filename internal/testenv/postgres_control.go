package testenv

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A Cluster is a PostgreSQL server of one test, which may stop it, break it and start it again. Its durability settings
// are those of production, its user is a superuser, and its write-ahead log comes in segments of 1 MiB, so that a limit on
// the size of files reaches tables before it reaches the log.
type Cluster struct {
	bin, home, data string
	owner           *syscall.Credential
	port            int
	starts          int
	service         *service
}

// PostgresCluster starts a cluster with more settings, as lines of postgresql.conf. It is gone at the end of the test.
func PostgresCluster(t testing.TB, settings ...string) *Cluster {
	t.Helper()
	c := &Cluster{}
	var err error
	if c.bin, err = postgresBin(); err == nil {
		c.owner, err = unprivileged()
	}
	if err == nil {
		c.home, err = ownDir(fastDir(), "cluster", c.owner)
	}
	if err == nil {
		c.port, err = freePort()
	}
	if err != nil {
		t.Fatalf("testenv: no PostgreSQL, and tests may not pass without it: %v", err)
	}
	t.Cleanup(func() {
		if c.service != nil {
			c.service.stop()
		}
		if err := os.RemoveAll(c.home); err != nil {
			t.Errorf("testenv: remove the cluster: %v", err)
		}
	})
	c.data = filepath.Join(c.home, "data")
	initdb := exec.Command(filepath.Join(c.bin, "initdb"), "--pgdata="+c.data, "--auth=trust", "--username=holdpoint",
		"--no-locale", "--encoding=UTF8", "--no-sync", "--wal-segsize=1")
	initdb.Dir, initdb.SysProcAttr = c.home, &syscall.SysProcAttr{Credential: c.owner}
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("testenv: initdb: %v: %s", err, out)
	}
	conf, err := os.OpenFile(filepath.Join(c.data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = conf.WriteString(string(postgresConf) + "\n" + strings.Join(settings, "\n") + "\n")
		err = errors.Join(err, conf.Close())
	}
	if err != nil {
		t.Fatalf("testenv: write postgresql.conf: %v", err)
	}
	c.Start(t)
	return c
}

// URL is the address of the cluster's database.
func (c *Cluster) URL() string {
	return (&url.URL{Scheme: "postgres", User: url.User("holdpoint"), Host: "127.0.0.1:" + strconv.Itoa(c.port),
		Path: "/postgres", RawQuery: "sslmode=disable"}).String()
}

// Start starts a stopped cluster and returns when it answers.
func (c *Cluster) Start(t testing.TB) {
	t.Helper()
	c.starts++
	run := filepath.Join(c.home, "run-"+strconv.Itoa(c.starts)) // the guard removes it when the server has ended
	err := os.Mkdir(run, 0o700)
	if err == nil && c.owner != nil {
		err = os.Chown(run, int(c.owner.Uid), int(c.owner.Gid))
	}
	if err == nil {
		c.service, err = start(run, c.owner, "QUIT", []string{filepath.Join(c.bin, "postgres"), "-D", c.data, "-p", strconv.Itoa(c.port)},
			func() error { return answers(c.URL()) })
	}
	if err != nil {
		t.Fatalf("testenv: start the cluster: %v", err)
	}
}

// How a cluster is stopped.
const (
	StopFast      = syscall.SIGINT  // transactions end, connections are told
	StopImmediate = syscall.SIGQUIT // as by a crash: the next start recovers
)

// Stop stops the cluster and returns when it has ended.
func (c *Cluster) Stop(t testing.TB, how syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(c.postmaster(t), how); err != nil {
		t.Fatalf("testenv: stop the cluster: %v", err)
	}
	for deadline := time.Now().Add(startLimit); !c.service.ended(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			t.Fatalf("testenv: the cluster does not stop within %s", startLimit)
		}
	}
	c.service.leash.Close()
	c.service = nil
}

// Limit bounds the size of files that the server and its backends may write, in bytes; 0 lifts the bound. Past it a table
// cannot grow, as on a full disk.
func (c *Cluster) Limit(t testing.TB, bytes uint64) {
	t.Helper()
	soft := "unlimited"
	if bytes > 0 {
		soft = strconv.FormatUint(bytes, 10)
	}
	postmaster := c.postmaster(t)
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", postmaster, postmaster))
	if err != nil {
		t.Fatalf("testenv: list the backends: %v", err)
	}
	// The server first: what it starts from now on inherits the bound.
	for _, pid := range append([]string{strconv.Itoa(postmaster)}, strings.Fields(string(children))...) {
		limit := exec.Command("prlimit", "--pid", pid, "--fsize="+soft+":")
		limit.SysProcAttr = &syscall.SysProcAttr{Credential: c.owner} // its own user may, root in a container may not
		out, err := limit.CombinedOutput()
		if err != nil && pid == strconv.Itoa(postmaster) { // a backend may have ended in the meantime
			t.Fatalf("testenv: limit the cluster: %v: %s", err, out)
		}
	}
}

// postmaster gives the number of the server's process.
func (c *Cluster) postmaster(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.data, "postmaster.pid"))
	if err != nil {
		t.Fatalf("testenv: the cluster does not run: %v", err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatalf("testenv: read the server's number: %v", err)
	}
	return pid
}
