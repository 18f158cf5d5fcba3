package simtest

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// check holds what stands to the evidence, after each step.
func (w *world) check() {
	w.evidence.follow()
	w.evidence.compare()
}

// step is one step of a seed: somebody does something, and those at the turnstile go on, mostly until all is quiet.
func (w *world) step() {
	switch n := w.rng.IntN(100); {
	case n < 26:
		w.work()
	case n < 36:
		w.deliver()
	case n < 60:
		w.decide()
	case n < 71:
		w.operate()
	case n < 93:
		w.elapse()
	case n < 96:
		w.look()
	case n < 98:
		w.stepClock()
	default:
		if w.profile.crash > 0 {
			w.say("kill -9")
			w.proc.dead.Store(true)
		}
	}
	limit := -1
	if w.chance(120) {
		limit = w.rng.IntN(3)
	}
	w.pump(limit)
	w.check()
}

// result is what one seed came to.
type result struct {
	sum     uint64
	crashes int
	cover   coverage
	broken  string
	said    []string
}

// simulate runs one seed.
func simulate(t *testing.T, seed uint64, steps int) (r result) {
	dir, err := os.MkdirTemp(memory(), "sim")
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(dir)) }()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, dir)
		defer func() {
			r = result{sum: w.sum, crashes: w.crashes, cover: w.cover, said: w.said}
			switch v := recover().(type) {
			case nil:
			case violation:
				r.broken = string(v)
			default:
				panic(v)
			}
			w.finish()
		}()
		w.begin()
		for range steps {
			w.step()
		}
		w.heal()
	})
	return r
}

// begin turns the switches on, in most seeds, and brings some work as far as its question, so that a seed is about what
// follows.
func (w *world) begin() {
	faulty := w.faulty
	w.faulty = false
	w.say("profile %s, poll %s", w.profile.name, w.poll)
	if w.chance(900) {
		for _, scope := range []string{"global", "tenant"} {
			w.flip(scope, true)
			w.pump(-1)
		}
	}
	for range w.rng.IntN(4) {
		j := w.newJob(pick(w, []string{"ticket", "refund", "order"}))
		w.claim(j, "")
		w.pump(-1)
		if j.stepwise {
			continue
		}
		w.workCall(j, "draft", map[string]any{"output": map[string]any{"reply": secret}})
		w.pump(-1)
	}
	w.check()
	w.faulty = faulty
	for _, a := range w.evidence.approvals {
		w.ask("ana", http.MethodPost, "/v1/approvals/"+a.id+"/decisions", map[string]any{"decision": "approve", "digest": a.digest}, nil)
		w.pump(-1)
	}
	w.check()
}

// number reads a number from the environment.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, name)
	return n
}

// failed says what broke, what led to it and how to see it again.
func failed(t *testing.T, seed uint64, steps int, r result) {
	from := max(0, len(r.said)-60)
	t.Errorf("seed %d: %s\n\n%s\n\nHOLDPOINT_SIM_SEED=%d HOLDPOINT_SIM_STEPS=%d go test ./internal/simtest -run TestSeed$", seed, r.broken, strings.Join(r.said[from:], "\n"), seed, steps)
}

// TestSeed replays the seed that HOLDPOINT_SIM_SEED names and tells its steps.
func TestSeed(t *testing.T) {
	seed, steps := number(t, "HOLDPOINT_SIM_SEED", 1), int(number(t, "HOLDPOINT_SIM_STEPS", usualSteps))
	r := simulate(t, seed, steps)
	if testing.Verbose() {
		fmt.Println(strings.Join(r.said, "\n"))
	}
	if r.broken != "" {
		failed(t, seed, steps, r)
	}
}

// TestASeedReplaysTheSame holds the driver to its promise: two runs of a seed differ in nothing that can be seen.
func TestASeedReplaysTheSame(t *testing.T) {
	for seed := uint64(1); seed <= usualReplays; seed++ {
		a, b := simulate(t, seed, usualSteps), simulate(t, seed, usualSteps)
		for i := range min(len(a.said), len(b.said)) {
			require.Equal(t, a.said[i], b.said[i], "seed %d, after\n%s", seed, strings.Join(a.said[max(0, i-10):i], "\n"))
		}
		require.Equal(t, a.sum, b.sum, "seed %d", seed)
		require.Equal(t, a.cover, b.cover, "seed %d", seed)
	}
}

// usualSteps is the length of a seed.
const usualSteps = 40

// TestSeeds runs many seeds, and fails if all of them together have not come across everything that can go wrong.
// HOLDPOINT_SIM_SEEDS, HOLDPOINT_SIM_STEPS and HOLDPOINT_SIM_FIRST make it other seeds, longer ones or more.
func TestSeeds(t *testing.T) {
	first, seeds, steps := number(t, "HOLDPOINT_SIM_FIRST", 1), number(t, "HOLDPOINT_SIM_SEEDS", usualSeeds), int(number(t, "HOLDPOINT_SIM_STEPS", usualSteps))
	begun := time.Now()
	var (
		mu                   sync.Mutex
		next                 = first
		done, crashes, wrong int
		all                  = coverage{}
	)
	take := func() (seed uint64, more bool) {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1, next-1 < first+seeds && wrong == 0
	}
	t.Run("all", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for seed, more := take(); more; seed, more = take() {
					r := simulate(t, seed, steps)
					mu.Lock()
					all.add(r.cover)
					crashes += r.crashes
					if done++; done%250 == 0 {
						t.Logf("%d seeds, %d steps, %d crashes, %d transitions, %s", done, done*steps, crashes, all.transitions(), time.Since(begun).Round(time.Second))
					}
					if r.broken != "" {
						wrong++
						failed(t, seed, steps, r)
					}
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("%d seeds, %d steps, %d crashes, %d transitions, %s", done, done*steps, crashes, all.transitions(), time.Since(begun).Round(time.Second))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if testing.Verbose() {
			t.Logf("%8d %s", all[name], name)
		}
	}
	if seeds*uint64(steps) >= fullCoverage {
		require.Empty(t, all.missing(), "no seed came across these")
	}
}

// fullCoverage is how many steps it takes until everything that can happen has happened a few times.
const fullCoverage = 60_000
