//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/internal/testenv"
)

// received is what a workflow gets of one delivery: the webhook's headers and its body. Its key is GitHub's delivery id,
// which stays the same when GitHub delivers again.
type received struct {
	id      string
	event   string
	payload []byte
}

// volatile says what may differ between two deliveries of one event: how it travelled, and counters and times of a
// repository that goes on living. The policy of the workflow ignores exactly these.
const volatile = `[/headers/date, /headers/x-forwarded-for, /attempt, /body/repository/updated_at, /body/repository/pushed_at, /body/repository/size,
 /body/repository/stargazers_count, /body/repository/watchers_count, /body/repository/open_issues_count, /body/sender/avatar_url]`

var repositoryCounters = []string{"size", "stargazers_count", "watchers_count", "open_issues_count"}

// delivery is one delivery of an event as the workflow hands it on, with everything volatile changed. Going through a
// decoder also changes the order of members and the spelling of strings, which must not matter. touch changes more.
func (r received) delivery(t testing.TB, random *rand.Rand, touch func(envelope map[string]any)) json.RawMessage {
	t.Helper()
	body := decode(t, r.payload)
	if repository, ok := body["repository"].(map[string]any); ok {
		for _, name := range repositoryCounters {
			repository[name] = random.IntN(1_000_000)
		}
		at := time.Unix(random.Int64N(2_000_000_000), 0).UTC().Format(time.RFC3339)
		repository["updated_at"], repository["pushed_at"] = at, at
	}
	if sender, ok := body["sender"].(map[string]any); ok {
		sender["avatar_url"] = fmt.Sprintf("https://avatars.githubusercontent.com/u/1?v=%d", random.IntN(100))
	}
	envelope := map[string]any{"attempt": random.IntN(1000), "body": body, "headers": map[string]any{
		"x-github-event": r.event, "x-github-delivery": r.id, "date": time.Unix(random.Int64N(2_000_000_000), 0).UTC().Format(time.RFC1123),
		"x-forwarded-for": fmt.Sprintf("192.0.2.%d", random.IntN(256))}}
	if touch != nil {
		touch(envelope)
	}
	out, err := json.Marshal(envelope)
	require.NoError(t, err)
	return out
}

func decode(t testing.TB, text []byte) map[string]any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // what a number says stays as GitHub wrote it
	var out map[string]any
	require.NoError(t, decoder.Decode(&out))
	return out
}

// claims counts what the deliveries of one event were answered.
type claims struct {
	leases, busy int
	runs         map[string]bool
}

// TestGitHub delivers every genuine GitHub payload three times, in any order, by single calls and in batches, over as many
// servers as the database allows, with volatile fields changed: one run for each event. A changed field that is not
// volatile is told apart, for each of them.
func TestGitHub(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(t, p, rest+`workflows:
  github:
    contract: draft.json
    fingerprint: {ignore: `+volatile+`}
    effects:
      note: {type: crm.note, connector: crm, consequence: crm_change, target: "${event.headers['x-github-delivery']}", payload: {text: "${draft.reply}"}}
    gate: {roles: [lead]}
`)
		servers := []*server{w.serve(serving{})}
		if p != sqlite {
			servers = append(servers, w.serve(serving{}))
		}
		var events []received
		for _, x := range testenv.OctokitExamples(t) {
			events = append(events, received{uuid.NewString(), x.Event, x.Payload})
		}
		require.Greater(t, len(events), 300)
		request := func(r received, touch func(map[string]any)) client.ClaimRequest {
			return client.ClaimRequest{Workflow: "github", Key: r.id, Payload: r.delivery(t, random, touch),
				Trigger: &client.Trigger{Source: "github", DeliveryID: r.id}}
		}
		var deliveries []client.ClaimRequest
		for range 3 {
			for _, r := range events {
				deliveries = append(deliveries, request(r, nil))
			}
		}
		random.Shuffle(len(deliveries), func(i, j int) { deliveries[i], deliveries[j] = deliveries[j], deliveries[i] })

		counted := map[string]*claims{}
		var mu sync.Mutex
		count := func(key string, c client.Claim, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("%s: %v", key, err)
				return
			}
			x := counted[key]
			if x == nil {
				x = &claims{runs: map[string]bool{}}
				counted[key] = x
			}
			x.runs[c.Run.ID] = true
			switch c.Outcome {
			case holdpoint.Claimed:
				x.leases++
			case holdpoint.Busy:
				x.busy++
			default:
				t.Errorf("%s was answered %s", key, c.Outcome)
			}
		}
		// Pieces of one to twenty; a piece of one is a single call, any other a batch.
		pieces := make(chan []client.ClaimRequest, len(deliveries))
		for rest := deliveries; len(rest) > 0; {
			n := min(len(rest), 1+random.IntN(2)*random.IntN(20))
			pieces <- rest[:n]
			rest = rest[n:]
		}
		close(pieces)
		var senders sync.WaitGroup
		for n := range 8 {
			senders.Go(func() {
				s := servers[n%len(servers)]
				for piece := range pieces {
					if len(piece) == 1 {
						c, err := s.machine.Claim(t.Context(), piece[0])
						count(piece[0].Key, c, err)
						continue
					}
					results, err := s.machine.ClaimBatch(t.Context(), piece)
					if err != nil || len(results) != len(piece) {
						t.Errorf("a batch of %d was answered with %d results: %v", len(piece), len(results), err)
						continue
					}
					for i, r := range results {
						count(piece[i].Key, r.Claim, r.Err)
					}
				}
			})
		}
		senders.Wait()
		require.Len(t, counted, len(events))
		for key, x := range counted {
			require.Equal(t, claims{1, 2, x.runs}, *x, key)
			require.Len(t, x.runs, 1, key)
		}
		stored, found := w.query("SELECT COUNT(*) FROM runs")
		require.True(t, found)
		require.EqualValues(t, len(events), stored)

		// The same key with something else in it is another matter: nothing changes, and it is told.
		var changed []client.ClaimRequest
		for _, r := range events {
			changed = append(changed, request(r, func(envelope map[string]any) {
				envelope["body"].(map[string]any)["action"] = "transferred to somebody else"
			}))
		}
		results, err := servers[0].machine.ClaimBatch(t.Context(), changed)
		require.NoError(t, err)
		require.Len(t, results, len(changed))
		for i, r := range results {
			require.NoError(t, r.Err)
			require.Equal(t, holdpoint.Mismatch, r.Outcome, changed[i].Key)
			require.True(t, counted[changed[i].Key].runs[r.Run.ID])
			require.EqualValues(t, 1, r.Run.Version)
		}
		single, err := servers[len(servers)-1].machine.Claim(t.Context(), changed[0])
		require.NoError(t, err)
		require.Equal(t, holdpoint.Mismatch, single.Outcome)
		run := servers[0].run(single.Run.ID)
		require.Equal(t, 2, run.Mismatches)
		require.Equal(t, 2, run.Duplicates)
		said := types(servers[0].evidence(run.ID))
		require.Contains(t, said, "run.mismatch")
		require.Contains(t, said, "run.duplicate")
	}, sqlite, postgres)
}
