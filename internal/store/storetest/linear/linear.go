// Package linear checks that a store is linearizable where its callers meet: several clients, in one process or in more,
// claim, renew, hand over, decide, lease, begin, settle, recover and repeat themselves at once, and leave some calls before
// their answer comes. Every run and every effect must have answered as one that takes one call at a time (porcupine).
package linear

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
)

// op is one call about one object, in a history that several clients write: what was asked, what was answered, and when
// on the clock that all processes of a machine share. A call whose answer was lost may happen at any time after From.
type op struct {
	Client   int    `json:"client"`
	Object   string `json:"object"` // the key of a run, or the id of an effect
	Verb     string `json:"verb"`
	Owner    string `json:"owner,omitempty"`
	Version  int64  `json:"version,omitempty"`
	Revision int    `json:"revision,omitempty"`
	ID       string `json:"id,omitempty"`   // of the call, the person or the attempt
	Arg      string `json:"arg,omitempty"`  // what of several things was asked
	Long     bool   `json:"long,omitempty"` // the lease outlives the history; else it may be over at any moment
	Got      answer `json:"got"`
	Unknown  bool   `json:"unknown,omitempty"` // no answer came
	From     int64  `json:"from"`              // nanoseconds
	To       int64  `json:"to"`
}

// answer is what a call was told. Code is an outcome, the code of an error, or ok.
type answer struct {
	Code    string `json:"code"`
	State   string `json:"state,omitempty"`
	Version int64  `json:"version,omitempty"`
	Doubt   bool   `json:"doubt,omitempty"` // possibly committed
	Lost    bool   `json:"lost,omitempty"`
}

// possible is one way in which an object may take a call.
type possible[S comparable] struct {
	next S
	got  answer
}

// modelOf makes a model of one object from all ways in which it may take a call.
func modelOf[S comparable](take func(S, op) []possible[S]) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{*new(S)} },
		Step: func(state, in, _ any) []any {
			o := in.(op)
			var next []any
			if o.Unknown {
				next = append(next, state)
			}
			for _, p := range take(state.(S), o) {
				if o.Unknown || p.got == o.Got {
					next = append(next, p.next)
				}
			}
			return next
		},
	}
	return m.ToModel()
}

// check fails unless the history of each object is one that a single copy of it, taking one call at a time, could have
// answered.
func check(t *testing.T, model porcupine.Model, history []op) {
	t.Helper()
	require.NotEmpty(t, history)
	objects := map[string][]porcupine.Operation{}
	for _, o := range history {
		if o.Unknown {
			o.To = math.MaxInt64
		}
		objects[o.Object] = append(objects[o.Object], porcupine.Operation{ClientId: o.Client, Input: o, Call: o.From, Return: o.To})
	}
	for name, calls := range objects {
		result := porcupine.CheckOperationsTimeout(model, calls, time.Minute)
		if result == porcupine.Ok {
			continue
		}
		slices.SortFunc(calls, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		for _, c := range calls {
			line, err := json.Marshal(c.Input)
			require.NoError(t, err)
			t.Logf("%s", line)
		}
		require.Fail(t, "no order of these calls explains their answers", "%s: object %s, %d calls", result, name, len(calls))
	}
}

// client is one writer of a history.
type client struct {
	number int
	rand   *rand.Rand
	write  func(op)
}

// journal collects what the clients of one process write.
type journal struct {
	mu  sync.Mutex
	ops []op
}

func (j *journal) add(o op) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ops = append(j.ops, o)
}

// call makes one call, writes it down, and reports whether its answer came. One in twenty is left before that, if it may be.
func (c *client) call(ctx context.Context, o op, run func(context.Context) (answer, error)) (got answer, came bool, err error) {
	if c.rand.IntN(20) == 0 {
		short, cancel := context.WithTimeout(ctx, time.Duration(c.rand.IntN(3000))*time.Microsecond)
		defer cancel()
		ctx = short
	}
	o.Client, o.From = c.number, monotonic()
	got, err = run(ctx)
	o.To = monotonic()
	var known *holdpoint.Error
	switch {
	case err == nil:
		if got.Code == "" {
			got.Code = "ok"
		}
	case errors.As(err, &known) && known.Code != holdpoint.CodeUnavailable && known.Code != holdpoint.CodeInternal:
		got = answer{Code: string(known.Code)}
	case known != nil && known.Code == holdpoint.CodeUnavailable, ctx.Err() != nil:
		got, o.Unknown = answer{}, true
	default:
		return got, false, err
	}
	o.Got = got
	c.write(o)
	return got, !o.Unknown, nil
}

// writeLines writes a history as lines of JSON; readLines reads it.
func writeLines(w io.Writer, history []op) error {
	lines := json.NewEncoder(w)
	for _, o := range history {
		if err := lines.Encode(o); err != nil {
			return err
		}
	}
	return nil
}

func readLines(r io.Reader) (history []op, err error) {
	lines := json.NewDecoder(r)
	for {
		var o op
		if err := lines.Decode(&o); errors.Is(err, io.EOF) {
			return history, nil
		} else if err != nil {
			return nil, err
		}
		history = append(history, o)
	}
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }
