//go:build e2e

package e2e

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
)

// rush claims one key from every client at the same moment and gives the answers in the order of the clients.
func rush(t *testing.T, key string, clients []*client.Client) []client.Claim {
	t.Helper()
	answers, errs := make([]client.Claim, len(clients)), make([]error, len(clients))
	start := make(chan struct{})
	var all sync.WaitGroup
	for i, c := range clients {
		all.Go(func() {
			<-start
			answers[i], errs[i] = c.Claim(t.Context(), client.ClaimRequest{Workflow: "ticket", Key: key, Payload: event(key),
				Trigger: &client.Trigger{Source: "rush", ExecutionID: fmt.Sprint(i)}})
		})
	}
	close(start)
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	return answers
}

// TestThousandClaims has a thousand callers claim one key at once: one of them gets the lease, whichever server it asked.
func TestThousandClaims(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		w := newWorld(t, p, governed)
		servers := []*server{w.serve(serving{})}
		if p != sqlite {
			servers = append(servers, w.serve(serving{}))
		}
		clients := make([]*client.Client, 1000)
		for i := range clients {
			clients[i] = servers[i%len(servers)].machine
		}
		answers := rush(t, "ticket-1000", clients)

		winner, busy := -1, 0
		for i, a := range answers {
			require.Equal(t, answers[0].Run.ID, a.Run.ID)
			switch a.Outcome {
			case holdpoint.Claimed:
				require.Negative(t, winner, "a second lease")
				winner = i
				require.NotNil(t, a.Lease)
			case holdpoint.Busy:
				busy++
				require.Nil(t, a.Lease)
				require.Positive(t, a.RetryAfter)
			default:
				t.Fatalf("a claim was answered %s", a.Outcome)
			}
		}
		require.GreaterOrEqual(t, winner, 0, "no lease")
		require.Equal(t, 999, busy)

		s := servers[winner%len(servers)]
		r := s.run(answers[winner].Run.ID)
		require.Equal(t, holdpoint.RunProcessing, r.State)
		require.EqualValues(t, 1, r.Version)
		require.Equal(t, 1, r.Attempts)
		require.Equal(t, fmt.Sprint(winner), r.ExecutionID)
		require.Equal(t, 999, r.Duplicates)
		claimed := 0
		for _, e := range s.evidence(r.ID) {
			if e.Type == "run.claimed" {
				claimed++
			}
		}
		require.Equal(t, 1, claimed)
		runs, err := s.machine.Runs(t.Context(), client.RunQuery{})
		require.NoError(t, err)
		require.Len(t, runs.Runs, 1)
	}, sqlite, postgres, pooled)
}

// TestManyKeysAtOnce lets both servers claim the same keys in batches, in opposite order: each key has one lease, and no
// batch waits for another for ever.
func TestManyKeysAtOnce(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		w := newWorld(t, p, governed)
		servers := []*server{w.serve(serving{}), w.serve(serving{})}
		const keys, batches = 200, 4
		leases, runs := map[string]int{}, map[string]string{}
		var mu sync.Mutex
		var all sync.WaitGroup
		for n := range batches {
			all.Go(func() {
				claims := make([]client.ClaimRequest, keys)
				for i := range claims {
					key := fmt.Sprintf("key-%d", i)
					if n%2 == 1 {
						key = fmt.Sprintf("key-%d", keys-1-i)
					}
					claims[i] = client.ClaimRequest{Workflow: "ticket", Key: key, Payload: event(key)}
				}
				results, err := servers[n%2].machine.ClaimBatch(t.Context(), claims)
				mu.Lock()
				defer mu.Unlock()
				if err != nil || len(results) != keys {
					t.Errorf("a batch was answered with %d results: %v", len(results), err)
					return
				}
				for i, r := range results {
					if r.Err != nil {
						t.Errorf("%s: %v", claims[i].Key, r.Err)
						continue
					}
					if r.Outcome == holdpoint.Claimed {
						leases[claims[i].Key]++
					}
					if known := runs[claims[i].Key]; known != "" && known != r.Run.ID {
						t.Errorf("%s has the runs %s and %s", claims[i].Key, known, r.Run.ID)
					}
					runs[claims[i].Key] = r.Run.ID
				}
			})
		}
		all.Wait()
		require.Len(t, leases, keys)
		for key, n := range leases {
			require.Equal(t, 1, n, key)
		}
	}, postgres)
}
