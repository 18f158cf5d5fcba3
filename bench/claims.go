package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// measureClaims compares claims of distinct keys over HTTP, evidence on, with the bare claim statement: on PostgreSQL
// run by pgbench, on SQLite by a loop in Go.
func measureClaims(ctx context.Context, b *bench, d database) error {
	ours := side{fmt.Sprintf("Holdpoint, claims over HTTP, %d clients", b.Lanes), func(ctx context.Context) (float64, error) { return b.claims(ctx, d) }}
	theirs := side{fmt.Sprintf("pgbench -c %d -M prepared, bare statement", b.Lanes), func(ctx context.Context) (float64, error) { return b.pgbench(ctx, d.(*cluster)) }}
	if d.kind() == "sqlite" {
		theirs = side{"loop in Go, bare statement", func(ctx context.Context) (float64, error) { return b.bareSQLite(ctx, d) }}
	}
	return b.compare(ctx, d, "claims", "claims/s", 1.0, ours, theirs)
}

// claims keeps the clients claiming and gives claims per second.
func (b *bench) claims(ctx context.Context, d database) (_ float64, err error) {
	address, err := d.create(ctx, b, "ours", "")
	if err != nil {
		return 0, err
	}
	defer func() { err = firstError(err, d.drop(ctx, address)) }()
	i, err := b.newInstance(ctx, address, "http://127.0.0.1:9")
	if err != nil {
		return 0, err
	}
	if err := i.serve(ctx); err != nil {
		return 0, err
	}
	defer func() { err = firstError(err, i.stop()) }()
	if err := d.settle(ctx); err != nil {
		return 0, err
	}
	return b.rate(ctx, func(lane int) (func(n int64) error, func(), error) {
		w, err := dial(i.addr)
		if err != nil {
			return nil, nil, err
		}
		h := head("POST", i.machines[lane%len(i.machines)])
		var body []byte
		return func(n int64) error {
			body = claimBody(body[:0], lane, n)
			_, err := w.do(http.StatusCreated, h, "/v1/claims", body)
			return err
		}, w.close, nil
	})
}

// claimBody writes the claim of an event that no other lane and no other n has.
func claimBody(body []byte, lane int, n int64) []byte {
	body = append(body, `{"workflow":"order","key":"`...)
	body = appendName(body, lane, n)
	body = append(body, `","payload":{"id":"`...)
	body = appendName(body, lane, n)
	return append(body, `","total":"10.50","customer":{"email":"jane@acme.example"}}}`...)
}

func appendName(b []byte, lane int, n int64) []byte {
	b = append(b, "order-"...)
	b = strconv.AppendInt(b, int64(lane), 10)
	return strconv.AppendInt(append(b, '-'), n, 10)
}

// rate calls once again and again in each lane, counts what ends inside the window after the warm-up, and gives calls
// per second. The first error ends it.
func (b *bench) rate(ctx context.Context, lane func(lane int) (once func(n int64) error, end func(), err error)) (float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var counting atomic.Bool
	var count atomic.Int64
	var all sync.WaitGroup
	for l := range b.Lanes {
		once, end, err := lane(l)
		if err != nil {
			cancel(err)
			break
		}
		all.Go(func() {
			defer end()
			for n := int64(0); ctx.Err() == nil; n++ {
				if err := once(n); err != nil {
					cancel(err)
					return
				}
				if counting.Load() {
					count.Add(1)
				}
			}
		})
	}
	wait(ctx, b.Warm)
	counting.Store(true)
	start := time.Now()
	wait(ctx, b.Window)
	counting.Store(false)
	took := time.Since(start)
	err := context.Cause(ctx)
	cancel(nil)
	all.Wait()
	return float64(count.Load()) / took.Seconds(), err
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// firstError is err, or otherwise if err is nil.
func firstError(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

const bareTable = `CREATE TABLE bare (tenant text, scope text, key text, id text, state text, owner text, version bigint, fingerprint text, expires bigint, payload text, created bigint, PRIMARY KEY (tenant, id), UNIQUE (tenant, scope, key))`

// pgbenchScript is the claim statement alone, prepared, without evidence, sealing or HTTP.
const pgbenchScript = `\set k random(1, 1000000000000)
INSERT INTO bare (tenant, scope, key, id, state, owner, version, fingerprint, expires, payload, created)
VALUES ('default', 'order', :k::text, gen_random_uuid()::text, 'processing', gen_random_uuid()::text, 1, repeat('f', 64), (extract(epoch from statement_timestamp()) * 1000000)::bigint + 300000000, repeat('x', 120), (extract(epoch from statement_timestamp()) * 1000000)::bigint)
ON CONFLICT (tenant, scope, key) DO UPDATE SET version = bare.version + 1, owner = excluded.owner, expires = excluded.expires
WHERE bare.fingerprint = excluded.fingerprint AND bare.state = 'processing' AND bare.expires <= (extract(epoch from statement_timestamp()) * 1000000)::bigint
RETURNING id, version, owner;
`

var tps = regexp.MustCompile(`tps = ([0-9.]+)`)

func (b *bench) pgbench(ctx context.Context, c *cluster) (_ float64, err error) {
	address, err := c.create(ctx, b, "theirs", "")
	if err != nil {
		return 0, err
	}
	defer func() { err = firstError(err, c.drop(ctx, address)) }()
	db, err := c.open(address)
	if err != nil {
		return 0, err
	}
	_, err = db.ExecContext(ctx, bareTable)
	if err := firstError(err, db.Close()); err != nil {
		return 0, err
	}
	script := filepath.Join(b.dir, "claim.sql")
	if err := os.WriteFile(script, []byte(pgbenchScript), 0o644); err != nil {
		return 0, err
	}
	if err := c.settle(ctx); err != nil {
		return 0, err
	}
	once := func(d time.Duration) ([]byte, error) {
		out, err := exec.CommandContext(ctx, filepath.Join(c.bin, "pgbench"), "-n", "-M", "prepared", "-c", strconv.Itoa(b.Lanes), "-j", "2",
			"-T", strconv.Itoa(max(1, int(d.Seconds()))), "-f", script, address).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("pgbench: %w: %s", err, out)
		}
		return out, nil
	}
	if _, err := once(b.Warm); err != nil {
		return 0, err
	}
	out, err := once(b.Window)
	if err != nil {
		return 0, err
	}
	m := tps.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("pgbench says no tps: %s", out)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

// bareSQLite is the claim statement alone, prepared, one transaction each, in as many goroutines as there are clients.
// SQLite has one writer: they share one connection, because more would only wait for its lock.
func (b *bench) bareSQLite(ctx context.Context, d database) (_ float64, err error) {
	address, err := d.create(ctx, b, "theirs", "")
	if err != nil {
		return 0, err
	}
	defer func() { err = firstError(err, d.drop(ctx, address)) }()
	db, err := d.open(address)
	if err != nil {
		return 0, err
	}
	defer func() { err = firstError(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(ctx, bareTable); err != nil {
		return 0, err
	}
	claim, err := db.PrepareContext(ctx, `INSERT INTO bare (tenant, scope, key, id, state, owner, version, fingerprint, expires, payload, created)
VALUES ('default', 'order', ?1, lower(hex(randomblob(16))), 'processing', lower(hex(randomblob(16))), 1, ?2, unixepoch() * 1000000 + 300000000, ?3, unixepoch() * 1000000)
ON CONFLICT (tenant, scope, key) DO UPDATE SET version = bare.version + 1, owner = excluded.owner, expires = excluded.expires
WHERE bare.fingerprint = excluded.fingerprint AND bare.state = 'processing' AND bare.expires <= unixepoch() * 1000000
RETURNING id, version, owner`)
	if err != nil {
		return 0, err
	}
	defer func() { _ = claim.Close() }()
	fingerprint, payload := fmt.Sprintf("%064d", 7), fmt.Sprintf("%0120d", 7)
	return b.rate(ctx, func(lane int) (func(n int64) error, func(), error) {
		return func(n int64) error {
			var id, owner string
			var version int64
			err := claim.QueryRowContext(ctx, string(appendName(nil, lane, n)), fingerprint, payload).Scan(&id, &version, &owner)
			return ignore(err, sql.ErrNoRows)
		}, func() {}, nil
	})
}

// ignore is err unless it is the one that does not matter.
func ignore(err, harmless error) error {
	if err == harmless {
		return nil
	}
	return err
}
