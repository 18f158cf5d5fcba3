package linear

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdpoint/holdpoint/internal/store"
)

// The size of one history.
const (
	clients = 3 // of each kind, on each store
	calls   = 30
	keys    = 10
	sends   = 8
)

// part is what one process, or one store, does for a history.
type part struct {
	DSN     string   `json:"dsn"`
	First   int      `json:"first"` // number of its first client
	Seed    uint64   `json:"seed"`
	Keys    []string `json:"keys"`
	Effects []string `json:"effects"`
}

// play lets the clients of a part work at once and gives what they wrote.
func (p part) play(ctx context.Context, s store.Store) (runs, effects []op, err error) {
	var run, effect journal
	var working errgroup.Group
	for i := range 2 * clients {
		r := client{number: p.First + i, rand: rand.New(rand.NewPCG(p.Seed, uint64(p.First+i))), write: run.add}
		working.Go(func() error {
			if i%2 == 0 {
				w := handler{client: r, Store: s}
				return w.work(ctx, p.Keys, calls)
			}
			r.write = effect.add
			d := sender{client: r, Store: s}
			return d.work(ctx, p.Effects, 4*calls)
		})
	}
	err = working.Wait()
	return run.ops, effect.ops, err
}

// partsOf prepares n parts of one history.
func partsOf(t *testing.T, s store.Store, n int) []part {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	parts, effects := make([]part, n), prepare(t, s, sends)
	names := make([]string, keys)
	for i := range names {
		names[i] = newID()
	}
	for i := range parts {
		parts[i] = part{First: i * 2 * clients, Seed: seed, Keys: names, Effects: effects}
	}
	return parts
}

// Check lets clients of several stores of one empty database claim, work, decide and send at once, and checks that
// every object answered as a single one would that takes one call at a time.
func Check(t *testing.T, stores ...store.Store) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var runs, effects journal
	var all errgroup.Group
	for i, p := range partsOf(t, stores[0], len(stores)) {
		all.Go(func() error {
			r, e, err := p.play(ctx, stores[i])
			for _, o := range r {
				runs.add(o)
			}
			for _, o := range e {
				effects.add(o)
			}
			return err
		})
	}
	require.NoError(t, all.Wait())
	judge(t, runs.ops, effects.ops)
}

// judge checks both kinds of histories.
func judge(t *testing.T, runs, effects []op) {
	t.Helper()
	check(t, modelOf(takeRun), runs)
	check(t, modelOf(takeEffect), effects)
}

// partEnv is the variable with the part that a process is to play.
const partEnv = "HOLDPOINT_TEST_HISTORY"

// Processes is Check in which each of n parts is a process of its own: this test's binary, started again, in which
// TestMain calls Process. dsn names the database that s, which serves no call while they work, has prepared.
func Processes(t *testing.T, s store.Store, dsn string, n int) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var all errgroup.Group
	histories := make([][2][]op, n)
	for i, p := range partsOf(t, s, n) {
		p.DSN = dsn
		all.Go(func() error {
			in, err := json.Marshal(p)
			if err != nil {
				return err
			}
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env, cmd.Stderr = append(os.Environ(), partEnv+"="+string(in)), os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				return err
			}
			if err := cmd.Start(); err != nil {
				return err
			}
			history, err := readLines(out)
			if err != nil {
				return err
			}
			for _, o := range history {
				kind := 0
				if o.Client%2 == 1 {
					kind = 1
				}
				histories[i][kind] = append(histories[i][kind], o)
			}
			return cmd.Wait()
		})
	}
	require.NoError(t, all.Wait())
	var runs, effects []op
	for _, h := range histories {
		runs, effects = append(runs, h[0]...), append(effects, h[1]...)
	}
	judge(t, runs, effects)
}

// Process plays this process's part of a history, if it was started for one, and writes it to out. It reports
// whether it was.
func Process(out io.Writer, open func(ctx context.Context, dsn string) (store.Store, error)) (bool, error) {
	in := os.Getenv(partEnv)
	if in == "" {
		return false, nil
	}
	var p part
	if err := json.Unmarshal([]byte(in), &p); err != nil {
		return true, fmt.Errorf("%s: %w", partEnv, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s, err := open(ctx, p.DSN)
	if err != nil {
		return true, err
	}
	runs, effects, err := p.play(ctx, s)
	if err == nil {
		err = s.Close()
	}
	if err == nil {
		err = writeLines(out, append(runs, effects...))
	}
	return true, err
}
