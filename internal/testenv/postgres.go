package testenv

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// PostgresVariable names the environment variable with the URL of a running PostgreSQL that is meant for tests. Its
// user must be a superuser. When it is empty, the first use starts a cluster for this test binary.
const PostgresVariable = "HOLDPOINT_TEST_POSTGRES"

// adminLimit bounds one administrative statement, of which the slowest is a CREATE DATABASE beside other tests.
const adminLimit = 60 * time.Second

//go:embed postgresql.conf
var postgresConf []byte

// server is the cluster of this test binary. The variable also keeps its leash from being collected.
var server struct {
	once    sync.Once
	url     *url.URL
	service *service
	err     error
}

// Postgres returns the URL of a new, empty PostgreSQL database that is dropped at the end of the test. Durability
// settings are those of production, and the user is a superuser. When PostgreSQL cannot be had, the test fails.
func Postgres(t testing.TB) string {
	t.Helper()
	return newDatabase(t, "template0")
}

// A Template is a database that is prepared once per test binary and then copied, which costs far less than to prepare
// each. It is for package-level variables and safe for concurrent use.
type Template struct {
	// Prepare fills the database behind the URL and closes every connection to it before it returns.
	Prepare func(ctx context.Context, dsn string) error

	once sync.Once
	name string
	err  error
}

// Postgres returns the URL of a new copy of the prepared database; the copy is dropped at the end of the test.
func (p *Template) Postgres(t testing.TB) string {
	t.Helper()
	p.once.Do(func() {
		base := serverURL(t)
		p.name = newName("template")
		ctx, cancel := context.WithTimeout(context.Background(), adminLimit)
		defer cancel()
		if p.err = admin(ctx, base, "CREATE DATABASE "+p.name+" TEMPLATE template0"); p.err == nil {
			p.err = p.Prepare(ctx, withDatabase(base, p.name))
		}
	})
	if p.err != nil {
		t.Fatalf("testenv: prepare the template database: %v", p.err)
	}
	return newDatabase(t, p.name)
}

// newDatabase copies the named database and returns the URL of the copy.
func newDatabase(t testing.TB, template string) string {
	t.Helper()
	base, name := serverURL(t), newName("test")
	ctx, cancel := context.WithTimeout(context.Background(), adminLimit)
	defer cancel()
	if err := admin(ctx, base, "CREATE DATABASE "+name+" TEMPLATE "+template); err != nil {
		t.Fatalf("testenv: create a database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), adminLimit)
		defer cancel()
		if err := admin(ctx, base, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("testenv: drop a database: %v", err)
		}
	})
	return withDatabase(base, name)
}

// newName returns a database name that no other process uses; it needs no quotes.
func newName(kind string) string {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails: crypto/rand ends the program instead
	return "holdpoint_" + kind + "_" + hex.EncodeToString(id)
}

// withDatabase returns base as a string, with another database.
func withDatabase(base *url.URL, name string) string {
	u := *base
	u.Path = "/" + name
	return u.String()
}

// admin runs one statement on a connection of its own, to the database that base names.
func admin(ctx context.Context, base *url.URL, statement string) error {
	conn, err := pgx.Connect(ctx, base.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, statement)
	return err
}

// serverURL returns the server to make databases on, and starts it when this is its first use.
func serverURL(t testing.TB) *url.URL {
	t.Helper()
	server.once.Do(func() {
		given := os.Getenv(PostgresVariable)
		if given == "" {
			server.err = retry(startPostgres)
			return
		}
		server.url, server.err = url.Parse(given)
		if server.err == nil && server.url.Scheme != "postgres" && server.url.Scheme != "postgresql" {
			server.err = errors.New(PostgresVariable + " is not a postgres:// URL")
		}
	})
	if server.err != nil {
		t.Fatalf("testenv: no PostgreSQL, and tests may not pass without it: %v", server.err)
	}
	return server.url
}

// startPostgres makes a cluster in memory where that has room, else on disk, and starts it.
func startPostgres() error {
	bin, err := postgresBin()
	if err != nil {
		return err
	}
	owner, err := unprivileged()
	if err != nil {
		return err
	}
	dir, err := ownDir(fastDir(), "postgres", owner)
	if err != nil {
		return err
	}
	fail := func(err error) error { return errors.Join(err, os.RemoveAll(dir)) }
	port, err := freePort()
	if err != nil {
		return fail(err)
	}
	data := filepath.Join(dir, "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"), "--pgdata="+data, "--auth=trust", "--username=holdpoint",
		"--no-locale", "--encoding=UTF8", "--no-sync")
	initdb.Dir, initdb.SysProcAttr = dir, &syscall.SysProcAttr{Credential: owner}
	if out, err := initdb.CombinedOutput(); err != nil {
		return fail(fmt.Errorf("initdb: %w: %s", err, out))
	}
	conf, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fail(fmt.Errorf("open postgresql.conf: %w", err))
	}
	_, err = conf.Write(postgresConf)
	if err := errors.Join(err, conf.Close()); err != nil {
		return fail(fmt.Errorf("write postgresql.conf: %w", err))
	}

	u := &url.URL{Scheme: "postgres", User: url.User("holdpoint"), Host: "127.0.0.1:" + strconv.Itoa(port),
		Path: "/postgres", RawQuery: "sslmode=disable"}
	// QUIT stops at once and loses what is not on disk: nothing here is kept.
	s, err := start(dir, owner, "QUIT",
		[]string{filepath.Join(bin, "postgres"), "-D", data, "-p", strconv.Itoa(port)},
		func() error { return answers(u.String()) })
	if err != nil {
		return fail(err)
	}
	server.url, server.service = u, s
	return nil
}

// answers reports why the server behind the URL does not answer a query, or nil.
func answers(dsn string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // also right behind a pooler
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return conn.Ping(ctx)
}

// postgresBin returns the directory of the server binaries: that of initdb on the PATH, else the newest of Debian's.
func postgresBin() (string, error) {
	if initdb, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(initdb), nil
	}
	newest, dir := 0, ""
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is well formed
	for _, initdb := range found {
		bin := filepath.Dir(initdb)
		if version, err := strconv.Atoi(filepath.Base(filepath.Dir(bin))); err == nil && version > newest {
			newest, dir = version, bin
		}
	}
	if dir == "" {
		return "", errors.New("the server binaries of PostgreSQL are missing; run scripts/deps.sh")
	}
	return dir, nil
}

// memoryRoom is what must be free in memory before a cluster is kept there: about eight times what a run has used.
const memoryRoom = 2 << 30

// fastDir returns a directory on a file system in memory when there is room, else the usual temporary directory.
func fastDir() string {
	const shm = "/dev/shm"
	var fs syscall.Statfs_t
	if syscall.Statfs(shm, &fs) == nil && fs.Bavail*uint64(fs.Bsize) >= memoryRoom {
		if probe, err := os.MkdirTemp(shm, "holdpoint-probe-"); err == nil && os.Remove(probe) == nil {
			return shm
		}
	}
	return os.TempDir()
}
