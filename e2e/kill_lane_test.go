//go:build e2e && kill

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/internal/testenv"
)

// delivered counts what the receiver of each of messageTable's messages gets in the end.
var delivered = map[string]int{"dispatch.message_prepared": 1, "dispatch.message_accepted": 2, "store.settle_message.before_commit": 2, "store.settle_message.committed": 1}

// hooked are the channels of a policy whose messages go to the world's provider.
const hooked = "channels:\n  hook: {kind: webhook, url: \"PROVIDER/inbox\", secret: \"${env:HOOK_SECRET}\", personal: true}\n"

// TestCrashedMessage kills the real binary at each moment of messageTable: every message arrives, under one id.
func TestCrashedMessage(t *testing.T) {
	pausableBinary(t)
	on(t, func(t *testing.T, p place) {
		for _, row := range messageTable {
			t.Run(row.point, func(t *testing.T) {
				t.Parallel() // a message's lease is long
				crashedMessage(t, p, row.point)
			})
		}
	}, sqlite, postgres)
}

func crashedMessage(t *testing.T, p place, point string) {
	document := staffed + connectorOf(plain) + hooked + "workflows:\n" + strings.Replace(flow("ticket", string(plain)), "[lead]}", "[lead], notify: [hook]}", 1)
	w := newWorld(t, p, strings.Replace(document, ", "+ben, "", 1))
	w.env = append(w.env, "HOOK_SECRET=a secret of this test")
	s := w.serve(serving{})
	c := s.claim("ticket", point)
	s.kill()
	s = w.armed(point)
	require.True(t, s.up(), s.logged())
	// The server may die before it has answered.
	_, _ = s.machine.SubmitDraft(t.Context(), c.Run.ID, client.DraftRequest{Work: client.Work{Owner: c.Lease.Owner, Version: c.Lease.Version},
		Output: json.RawMessage(`{"reply": "Yes."}`), Model: model})
	s.died(soon)
	s = w.serve(serving{})
	require.Equal(t, holdpoint.RunAwaitingHuman, s.run(c.Run.ID).State)
	var m holdpoint.MessageRecord
	eventually(t, 2*later, "the message is delivered", func() bool {
		all := s.run(c.Run.ID).Messages
		require.Len(t, all, 1)
		m = all[0]
		return m.State == "delivered"
	})
	links := map[string]bool{}
	for _, one := range w.provider.Writes() {
		require.Equal(t, m.ID, one.Header.Get("Webhook-Id"))
		link := regexp.MustCompile(`/approve/[A-Za-z0-9_-]+`).FindString(string(one.Body))
		require.NotEmpty(t, link)
		links[link] = true
	}
	require.Len(t, links, delivered[point], "each delivery has a link of its own")
}

// TestCrashedInit kills init at each moment of initTable and does what the table says.
func TestCrashedInit(t *testing.T) {
	pausableBinary(t)
	on(t, func(t *testing.T, p place) {
		for _, row := range initTable {
			if row.point == "app.locked" && p != sqlite {
				continue // PostgreSQL needs no lock
			}
			t.Run(row.point, func(t *testing.T) { crashedInit(t, p, row.point) })
		}
	}, sqlite, postgres)
}

func crashedInit(t *testing.T, p place, point string) {
	w := &world{t: t, dir: t.TempDir()}
	database := func() {
		w.env = []string{"HOLDPOINT_DB=sqlite:" + filepath.Join(w.dir, "holdpoint.db")}
		if p == postgres {
			dsn := testenv.Postgres(t)
			w.env = []string{"HOLDPOINT_DB=" + dsn, "HOLDPOINT_DB_DIRECT=" + dsn}
		}
	}
	database()
	w.program = pausableBinary(t)
	dead := w.execute([]string{"HOLDPOINT_KILLPOINT=kill:" + point}, "", "init", "--admin", otto, "--json")
	require.Negative(t, dead.code, "init was killed: %s", dead.stderr)
	require.Empty(t, dead.stdout)
	w.program = ""

	again := w.execute(nil, "", "init", "--admin", otto, "--json")
	require.Positive(t, again.code)
	require.Contains(t, again.stderr, "exists already and is not overwritten")
	if point == "init.before_answer" {
		w.answer(nil, "", "users", "add", ana, "--local")
		var made struct{ Key string }
		w.answer(&made, "", "users", "token", otto, "--scopes", "read,admin", "--local")
		s := w.serve(serving{})
		_, err := client.New(s.url, made.Key).CreateKey(t.Context(), "first workflow", []holdpoint.Scope{holdpoint.ScopeWork})
		require.NoError(t, err)
		return
	}
	files, err := os.ReadDir(w.dir)
	require.NoError(t, err)
	for _, f := range files {
		require.NoError(t, os.RemoveAll(filepath.Join(w.dir, f.Name())))
	}
	if p == postgres && point == "store.create_tenant.committed" {
		refused := w.execute(nil, "", "init", "--admin", otto, "--json")
		require.Positive(t, refused.code)
		require.Contains(t, refused.stderr, "already holds tenants")
		database()
	}
	var made struct {
		APIKey string `json:"api_key"`
	}
	w.answer(&made, "", "init", "--admin", otto)
	w.key = made.APIKey
	s := w.serve(serving{})
	eventually(t, soon, "the new store serves", func() bool {
		_, err := s.machine.Runs(t.Context(), client.RunQuery{})
		return err == nil
	})
}
