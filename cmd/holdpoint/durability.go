package main

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"modernc.org/sqlite"
)

// connections is what every SQLite connection says about its own durability, as the store has set it up.
type connections struct {
	mu   sync.Mutex
	seen []sqliteConnection
}

type sqliteConnection struct {
	journal     string // journal_mode
	synchronous int64  // 2: FULL, 3: EXTRA
	err         error
}

// watchConnections reads the settings back from every SQLite connection that this process opens from now on. They hold
// for one connection each, so that only a connection of the store itself can say what holds for it.
func watchConnections() *connections {
	c := &connections{}
	sqlite.RegisterConnectionHook(func(conn sqlite.ExecQuerierContext, _ string) error {
		var s sqliteConnection
		var journal, synchronous driver.Value
		journal, s.err = pragma(conn, "PRAGMA journal_mode")
		if s.err == nil {
			synchronous, s.err = pragma(conn, "PRAGMA synchronous")
		}
		s.journal, _ = journal.(string)
		s.synchronous, _ = synchronous.(int64)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.seen = append(c.seen, s)
		return nil
	})
	return c
}

// pragma reads one value.
func pragma(conn sqlite.ExecQuerierContext, query string) (v driver.Value, err error) {
	rows, err := conn.QueryContext(context.Background(), query, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	row := make([]driver.Value, len(rows.Columns()))
	if err := rows.Next(row); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(row) != 1 {
		return nil, errors.New("no single value")
	}
	return row[0], nil
}

// synchronousFull is the weakest setting of synchronous under which a commit survives a loss of power.
const synchronousFull = 2

// durability checks that what the database has acknowledged survives a loss of power.
func (x *examination) durability(ctx context.Context, s settings, watch *connections) {
	if strings.HasPrefix(s.DB, "sqlite:") {
		x.sqliteDurability(watch)
		return
	}
	x.postgresDurability(ctx, s)
}

func (x *examination) sqliteDurability(watch *connections) {
	const check = "durability"
	watch.mu.Lock()
	defer watch.mu.Unlock()
	if len(watch.seen) == 0 {
		x.fail(check, "no connection of the store was seen", "report this with the output of holdpoint version")
		return
	}
	for _, c := range watch.seen {
		switch {
		case c.err != nil:
			x.fail(check, "a connection does not say how durable it is", plain(c.err))
			return
		case !strings.EqualFold(c.journal, "wal"):
			x.fail(check, "a connection has journal_mode "+c.journal, "keep the store on a local file system; a network file system has no write-ahead log")
			return
		case c.synchronous < synchronousFull:
			x.fail(check, "a connection has synchronous below FULL", "report this with the output of holdpoint version")
			return
		}
	}
	x.ok(check, "journal_mode WAL and synchronous FULL on %s", count(len(watch.seen), "connection"))
}

// postgresWants are the settings without which PostgreSQL may lose or tear what it has acknowledged.
var postgresWants = []struct{ name, want, why string }{
	{"fsync", "on", "set it to on: a loss of power destroys the database"},
	{"full_page_writes", "on", "set it to on: a loss of power may tear pages"},
	{"synchronous_commit", "", "set it to on: a loss of power forgets what was acknowledged"},
}

func (x *examination) postgresDurability(ctx context.Context, s settings) {
	config, err := pgx.ParseConfig(s.DB)
	if err != nil {
		x.fail("durability", "the connection string is not one of PostgreSQL", "correct HOLDPOINT_DB")
		return
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // a pooler may stand in between
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		x.fail("durability", "the settings cannot be read", plain(err))
		return
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, w := range postgresWants {
		var value string
		err := conn.QueryRow(ctx, "SHOW "+w.name).Scan(&value)
		switch {
		case err != nil:
			x.fail("durability", w.name+" cannot be read", plain(err))
		case w.want != "" && value != w.want, w.name == "synchronous_commit" && value == "off":
			x.fail("durability", w.name+" is "+value, w.why)
		default:
			x.ok("durability", "%s is %s", w.name, value)
		}
	}
}
