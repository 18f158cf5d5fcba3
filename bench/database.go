package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "modernc.org/sqlite"             // the driver sqlite
)

// database makes fresh databases of one kind.
type database interface {
	kind() string
	describe()
	// create makes a database, as a copy of another one unless from is "", and gives its address as HOLDPOINT_DB wants it.
	create(ctx context.Context, b *bench, name, from string) (string, error)
	drop(ctx context.Context, address string) error
	// open gives a pool of connections to look at a database with.
	open(address string) (*sql.DB, error)
	// settle writes out what earlier work left to do, so that a run does not pay for its predecessor.
	settle(ctx context.Context) error
}

// cluster is a throwaway PostgreSQL server.
type cluster struct {
	bin  string
	base url.URL
	cmd  *exec.Cmd
}

// clusterConf is the default configuration but for room: memory and log as a small production server has them. fsync,
// full_page_writes and synchronous_commit stay on.
const clusterConf = `
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 300
fsync = on
synchronous_commit = on
shared_buffers = 1GB
max_wal_size = 8GB
checkpoint_timeout = 15min
log_min_messages = warning
`

func startPostgres(ctx context.Context, dir string) (*cluster, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well formed
	if path, err := exec.LookPath("pgbench"); err == nil && len(found) == 0 {
		found = append(found, filepath.Dir(path))
	}
	if len(found) == 0 {
		return nil, errors.New("PostgreSQL is not installed; run scripts/deps.sh")
	}
	c := &cluster{bin: found[len(found)-1]}
	owner, err := clusterOwner()
	if err != nil {
		return nil, err
	}
	home := filepath.Join(dir, "postgres")
	if err := os.Mkdir(home, 0o700); err != nil {
		return nil, err
	}
	attributes := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT, Setpgid: true}
	if owner != nil {
		attributes.Credential = owner
		if err := os.Chown(home, int(owner.Uid), int(owner.Gid)); err != nil {
			return nil, err
		}
	}
	data := filepath.Join(home, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(c.bin, "initdb"), "--pgdata="+data, "--auth=trust", "--username=holdpoint", "--no-locale", "--encoding=UTF8")
	initdb.Dir, initdb.SysProcAttr = home, attributes
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	conf, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	_, err = conf.WriteString(clusterConf)
	if err := errors.Join(err, conf.Close()); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "postgres.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c.cmd = exec.Command(filepath.Join(c.bin, "postgres"), "-D", data, "-p", strconv.Itoa(port))
	c.cmd.Dir, c.cmd.SysProcAttr, c.cmd.Stdout, c.cmd.Stderr = home, attributes, log, log
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.base = url.URL{Scheme: "postgres", User: url.User("holdpoint"), Host: "127.0.0.1:" + strconv.Itoa(port), Path: "/postgres", RawQuery: "sslmode=disable"}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err = c.ask(ctx, "SELECT 1"); err == nil {
			return c, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			c.stop()
			return nil, fmt.Errorf("PostgreSQL does not start: %w", err)
		}
	}
}

// clusterOwner is who PostgreSQL runs as: it refuses root.
func clusterOwner() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(err1, err2)
}

func (c *cluster) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGQUIT) // at once: nothing is kept
	_ = c.cmd.Wait()
}

// ask runs one statement on the server's own database and gives the first column of its first row, if it has one.
func (c *cluster) ask(ctx context.Context, statement string) (string, error) {
	conn, err := pgx.Connect(ctx, c.base.String())
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, statement, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return "", err
	}
	answer, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(answer) == 0 {
		return "", err
	}
	return answer[0], nil
}

func (c *cluster) kind() string { return "postgres" }

func (c *cluster) describe() {
	fmt.Print("PostgreSQL ")
	for _, name := range []string{"server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size"} {
		value, err := c.ask(context.Background(), "SHOW "+name)
		if err != nil {
			value = err.Error()
		}
		fmt.Printf("%s=%s ", name, value)
	}
	fmt.Print("\n\n")
}

func (c *cluster) create(ctx context.Context, _ *bench, name, from string) (string, error) {
	if from == "" {
		from = "/template0"
	}
	template, err := url.Parse(from)
	if err != nil {
		return "", err
	}
	_, err = c.ask(ctx, "CREATE DATABASE "+name+" TEMPLATE "+strings.TrimPrefix(template.Path, "/"))
	u := c.base
	u.Path = "/" + name
	return u.String(), err
}

func (c *cluster) drop(ctx context.Context, address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	_, err = c.ask(ctx, "DROP DATABASE "+strings.TrimPrefix(u.Path, "/")+" WITH (FORCE)")
	return err
}

func (c *cluster) open(address string) (*sql.DB, error) { return sql.Open("pgx", address) }

func (c *cluster) settle(ctx context.Context) error {
	_, err := c.ask(ctx, "CHECKPOINT")
	return err
}

// sqliteFiles keeps each database in a file of its own.
type sqliteFiles struct{}

func (sqliteFiles) kind() string { return "sqlite" }

func (s sqliteFiles) describe() {
	db, err := s.open("sqlite::memory:")
	version := ""
	if err == nil {
		err = errors.Join(db.QueryRow("SELECT sqlite_version()").Scan(&version), db.Close())
	}
	if err != nil {
		version = err.Error()
	}
	fmt.Printf("SQLite %s, journal_mode=WAL, synchronous=FULL on both sides\n\n", version)
}

func (sqliteFiles) create(_ context.Context, b *bench, name, from string) (string, error) {
	path := filepath.Join(b.dir, name+".db")
	if from == "" {
		return "sqlite:" + path, nil
	}
	for _, suffix := range []string{"", "-wal"} {
		body, err := os.ReadFile(strings.TrimPrefix(from, "sqlite:") + suffix)
		if errors.Is(err, os.ErrNotExist) && suffix != "" {
			continue
		}
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(path+suffix, body, 0o600); err != nil {
			return "", err
		}
	}
	return "sqlite:" + path, nil
}

func (sqliteFiles) drop(_ context.Context, address string) error {
	files, err := filepath.Glob(strings.TrimPrefix(address, "sqlite:") + "*")
	for _, f := range slices.Sorted(slices.Values(files)) {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

func (sqliteFiles) open(address string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+strings.TrimPrefix(address, "sqlite:")+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
}

func (sqliteFiles) settle(context.Context) error {
	syscall.Sync()
	return nil
}
