//go:build bench

// Package bench measures Holdpoint beside what people would pick instead. A figure is one run on one machine; only the
// ratios of one run mean something.
package bench

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/app"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/testenv"
)

const (
	clients = 64
	seconds = 10
)

const policyDocument = `version: 1
redelivery_window: 30d
roles:
  lead: {users: [a@acme.example, b@acme.example]}
  policy-owner: {users: [a@acme.example]}
  tenant-admin: {users: [a@acme.example]}
connectors:
  crm: {kind: http, url: "https://crm.acme.example/notes"}
workflows:
  order:
    contract: c.json
    effects: {note: {type: crm.note, connector: crm, consequence: crm_change, target: "${event.id}", payload: {text: "${draft.text}"}}}
    gate: {pattern: approve_before_act, roles: [lead], approve_by: 24h, execute_by: 24h}
`

// TestClaims compares claims of distinct keys over HTTP, evidence on, with pgbench running the bare claim statement.
func TestClaims(t *testing.T) {
	ctx := context.Background()
	dsn := testenv.Postgres(t)
	base, key := serve(t, ctx, dsn)
	ours := claims(t, base, key)
	theirs := pgbench(t, dsn)
	fmt.Printf("claims over HTTP, %d clients, %ds: %.0f/s (evidence on)\npgbench -M prepared -c %d, bare claim statement: %.0f/s\nratio: %.2f\n",
		clients, seconds, ours, clients, theirs, ours/theirs)
}

func serve(t *testing.T, ctx context.Context, dsn string) (base, key string) {
	a, err := app.New(ctx, app.Options{DB: dsn, DBDirect: dsn, Listen: "127.0.0.1:0", PublicURL: "http://127.0.0.1", MasterKey: bytes.Repeat([]byte{7}, 32), Roles: []string{app.RoleAPI}})
	require.NoError(t, err)
	e := a.Engine()
	by := engine.Local("default", "bench")
	require.NoError(t, e.CreateTenant(ctx, by, "default"))
	for _, email := range []string{"a@acme.example", "b@acme.example"} {
		_, err = e.AddPerson(ctx, by, email, "correct horse battery")
		require.NoError(t, err)
	}
	p, err := e.PutPolicy(ctx, by, engine.PolicyProposal{Document: policyDocument, Files: map[string]string{"c.json": `{"type":"object"}`}})
	require.NoError(t, err, "%v", err)
	require.NoError(t, e.ActivatePolicy(ctx, by, p.Hash, ""))
	k, err := e.CreateKey(ctx, by, "bench", []holdpoint.Scope{holdpoint.ScopeWork})
	require.NoError(t, err)
	require.NoError(t, a.Start())
	t.Cleanup(func() { require.NoError(t, a.Stop(context.Background())) })
	return "http://" + a.Addr(), k.Key
}

// claims keeps 64 clients claiming distinct keys and gives claims per second.
func claims(t *testing.T, base, key string) float64 {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	var done, failed atomic.Int64
	claim := func(i int64) {
		body := fmt.Sprintf(`{"workflow":"order","key":"order-%d","payload":{"id":"%d","total":"10.50","customer":{"email":"jane@acme.example"}}}`, i, i)
		req, _ := http.NewRequest("POST", base+"/v1/claims", strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil || resp.StatusCode != http.StatusCreated {
			failed.Add(1)
		} else {
			done.Add(1)
		}
		if err == nil {
			_ = resp.Body.Close()
		}
	}
	var next atomic.Int64
	stop := time.Now().Add(seconds * time.Second)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for time.Now().Before(stop) {
				claim(next.Add(1))
			}
		})
	}
	wg.Wait()
	require.Zero(t, failed.Load())
	return float64(done.Load()) / seconds
}

// pgbench runs the claim statement alone, prepared, without evidence, sealing or HTTP.
func pgbench(t *testing.T, dsn string) float64 {
	script := filepath.Join(t.TempDir(), "claim.sql")
	require.NoError(t, os.WriteFile(script, []byte(`\set k random(1, 1000000000000)
INSERT INTO bare (tenant, scope, key, id, state, owner, version, fingerprint, expires, payload, created)
VALUES ('default', 'order', :k::text, gen_random_uuid()::text, 'processing', gen_random_uuid()::text, 1, repeat('f', 64), (extract(epoch from statement_timestamp()) * 1000000)::bigint + 300000000, repeat('x', 120), (extract(epoch from statement_timestamp()) * 1000000)::bigint)
ON CONFLICT (tenant, scope, key) DO UPDATE SET version = bare.version + 1, owner = excluded.owner, expires = excluded.expires
WHERE bare.fingerprint = excluded.fingerprint AND bare.state = 'processing' AND bare.expires <= (extract(epoch from statement_timestamp()) * 1000000)::bigint
RETURNING id, version, owner;
`), 0o644))
	psql := exec.Command("psql", dsn, "-qc", `CREATE TABLE bare (tenant text, scope text, key text, id text, state text, owner text, version bigint, fingerprint text, expires bigint, payload text, created bigint, PRIMARY KEY (tenant, id), UNIQUE (tenant, scope, key))`)
	out, err := psql.CombinedOutput()
	require.NoError(t, err, "%s", out)
	path, err := exec.LookPath("pgbench")
	if err != nil {
		found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
		require.NotEmpty(t, found, "pgbench is not installed")
		path = found[len(found)-1]
	}
	out, err = exec.Command(path, "-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", "2", "-T", strconv.Itoa(seconds), "-f", script, dsn).CombinedOutput()
	require.NoError(t, err, "%s", out)
	m := regexp.MustCompile(`tps = ([0-9.]+)`).FindSubmatch(out)
	require.NotNil(t, m, "%s", out)
	tps, err := strconv.ParseFloat(string(m[1]), 64)
	require.NoError(t, err)
	return tps
}
