package faultstore_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/app"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/connector/mirror"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/testenv"
)

// journal is a log that tests read.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

// count gives the number of lines that have all words.
func (j *journal) count(words ...string) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
line:
	for line := range strings.Lines(j.b.String()) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue line
			}
		}
		n++
	}
	return n
}

// newProcess starts a whole process of Holdpoint over a PostgreSQL cluster of its own.
func newProcess(t *testing.T) (*world, *testenv.Cluster, *journal) {
	t.Helper()
	ctx, c, log := t.Context(), testenv.PostgresCluster(t), &journal{}
	w := &world{T: t}
	var err error
	w.provider, err = mirror.Start("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.provider.Close()) })
	a, err := app.New(ctx, app.Options{DB: c.URL(), DBDirect: c.URL(), Listen: "127.0.0.1:0", PublicURL: "http://127.0.0.1:8470", MasterKey: []byte(strings.Repeat("k", 32)),
		ActionsEnabled: true, EgressAllow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Secrets: secrets{"HOOK": strings.Repeat("s", 32)}, Log: slog.New(slog.NewJSONHandler(log, nil))})
	require.NoError(t, err)
	w.engine = a.Engine()
	local := engine.Local(tenant, "test")
	require.NoError(t, w.engine.CreateTenant(ctx, local, tenant))
	token := map[string]string{}
	for _, who := range []string{"ana", "ops"} {
		_, err := w.engine.AddPerson(ctx, local, who+"@acme.example", password)
		require.NoError(t, err)
		k, err := w.engine.CreateToken(ctx, local, who+"@acme.example", "test", holdpoint.PersonScopes)
		require.NoError(t, err)
		token[who] = k.Key
	}
	k, err := w.engine.CreateKey(ctx, local, "worker", []holdpoint.Scope{holdpoint.ScopeWork, holdpoint.ScopeRead})
	require.NoError(t, err)
	w.activate(pathPolicy)
	require.NoError(t, a.Start())
	t.Cleanup(func() { require.NoError(t, a.Stop(context.Background())) })
	w.url = "http://" + a.Addr()
	w.machine, w.ana, w.ops = client.New(w.url, k.Key), client.New(w.url, token["ana"]), client.New(w.url, token["ops"])
	return w, c, log
}

// eventually waits for a condition in the process's own time.
func eventually(t *testing.T, what string, met func() bool) {
	t.Helper()
	require.Eventually(t, met, patience, 20*time.Millisecond, what)
}

// While the store is away nothing leaves, callers and probes are told so, and the log says why. When it is back,
// everything that was acknowledged is done, once, by the same process.
func TestAProcessOutlivesItsStore(t *testing.T) {
	t.Parallel()
	w, c, log := newProcess(t)
	ctx, keys := t.Context(), 12
	for n := range keys {
		w.approved("reply", fmt.Sprintf("k-%d", n))
	}
	w.switchOn(true)
	eventually(t, "the first effects leave", func() bool { return w.provider.CountPath("/notes") > 0 })

	c.Stop(t, testenv.StopImmediate)
	// What had begun before may still arrive; after a failed look for work nothing new does.
	failed := func() int { return log.count("loop failed", `"loop":"send"`, "the database") }
	seen := failed()
	eventually(t, "the loop that sends finds no store", func() bool { return failed() > seen+2 })
	base, seen := w.provider.CountPath("/notes"), failed()
	eventually(t, "it goes on looking", func() bool { return failed() > seen+1 })
	require.Equal(t, base, w.provider.CountPath("/notes"), "a store that cannot be reached is a switch that is off")

	resp, err := http.Get(w.url + "/readyz")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	eventually(t, "the log says why", func() bool { return log.count("not ready", "the database cannot be reached") > 0 })
	_, err = w.machine.Claim(ctx, claimOf("reply", "while away"))
	require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeUnavailable})
	require.ErrorContains(t, err, "repeat the call")

	c.Start(t)
	eventually(t, "it is ready again", func() bool { return w.machine.Ready(ctx) == nil })
	eventually(t, "everything is done", func() bool {
		page, err := w.machine.Runs(ctx, client.RunQuery{State: holdpoint.RunCompleted, Limit: 100})
		return err == nil && len(page.Runs) == keys
	})
	arrived := map[string]int{}
	for _, x := range w.provider.Writes() {
		if x.Path == "/notes" {
			arrived[x.Reference]++
		}
	}
	require.Len(t, arrived, keys)
	for reference, n := range arrived {
		require.Equal(t, 1, n, reference)
	}
}
