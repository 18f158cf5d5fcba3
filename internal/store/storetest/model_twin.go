package storetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// twin is a store and its model, which are asked the same.
type twin struct {
	r      *rapid.T
	ctx    context.Context
	store  store.Store
	model  *model
	micros atomic.Int64
	calls  map[string]int // of each verb
	ids    int
	steps  int
	fences []store.Fence          // ever given
	called map[string]store.Fence // of the last call of each kind
	leases []store.LeasedEffect
	begins []store.AttemptBegin
	begun  []modelBegun
	looks  []store.LeasedEffect
}

// modelBegun is an attempt that was begun, and by whom.
type modelBegun struct {
	store.BegunAttempt
	tenant, owner string
}

// modelTenants are the tenants of every sequence: one that works and one that may look.
var modelTenants = []string{"acme", "beta"}

// modelMachine is a state machine over some verbs, which it draws as often as they stand in the list.
type modelMachine struct {
	name  string
	verbs []string
	begin func(w *twin)
}

// modelOmits are the methods of store.Store that no machine calls.
var modelOmits = map[string]string{
	"Wake":  "a hint that may never come; Policies checks that it does in one process",
	"Close": "ends every sequence",
	"Ping":  "answers whether the database can be reached, which the model always can",
}

// Model runs random sequences of every verb on a store and on its model, which must answer alike and leave the same.
func Model(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	calls := map[string]int{}
	defaults(t, "rapid.checks", sequences)
	defaults(t, "rapid.steps", "80")
	for _, machine := range modelMachines {
		t.Run(machine.name, func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				here := &span{TB: t}
				defer here.end()
				w := &twin{r: r, ctx: t.Context(), calls: calls, called: map[string]store.Fence{}}
				w.micros.Store(start.UnixMicro())
				w.store, w.model = open(here, w.now), newModel(w.now)
				w.run(machine)
			})
		})
	}
	all := reflect.TypeFor[store.Store]()
	for i := range all.NumMethod() {
		verb := all.Method(i).Name
		if why, omitted := modelOmits[verb]; omitted {
			require.NotEmpty(t, why)
			continue
		}
		require.NotZero(t, calls[verb], "no machine has called %s", verb)
	}
}

// defaults gives a flag of rapid another default for one test: what the command line asks for stands.
func defaults(t *testing.T, name, value string) {
	t.Helper()
	f := flag.Lookup(name)
	if f.Value.String() != f.DefValue {
		return
	}
	require.NoError(t, f.Value.Set(value))
	t.Cleanup(func() { _ = f.Value.Set(f.DefValue) })
}

// span is a part of a test: what it has opened ends with it.
type span struct {
	testing.TB
	ends []func()
}

// Cleanup implements testing.TB.
func (s *span) Cleanup(fn func()) { s.ends = append(s.ends, fn) }

func (s *span) end() {
	for _, fn := range slices.Backward(s.ends) {
		fn()
	}
}

// run is one sequence of a machine, and then a look at all that stands.
func (w *twin) run(machine modelMachine) {
	for _, tenant := range modelTenants {
		w.must(ask(w, "CreateTenant", func(s store.Store) (none, error) {
			return none{}, s.CreateTenant(w.ctx, store.Tenant{Name: tenant, EffectKey: []byte("effect"), IndexKey: []byte("index")}, admin)
		}))
	}
	machine.begin(w)
	actions := map[string]func(*rapid.T){}
	for i, verb := range machine.verbs {
		action := modelActions[verb]
		require.NotNil(w.r, action, "%s has no action", verb)
		actions[fmt.Sprintf("%s %02d", verb, i)] = func(r *rapid.T) {
			w.r = r
			w.advance(time.Microsecond) // nothing happens at the same time as something else
			action(w)
			if w.steps++; w.steps%32 == 0 {
				w.same()
			}
		}
	}
	w.r.Repeat(actions)
	for _, verb := range slices.Compact(slices.Sorted(slices.Values(machine.verbs))) { // each at least once
		w.advance(time.Microsecond)
		modelActions[verb](w)
	}
	w.same()
}

func (w *twin) now() time.Time { return time.UnixMicro(w.micros.Load()).UTC() }

func (w *twin) advance(d time.Duration) { w.micros.Add(d.Microseconds()) }

// none is the answer of a verb that gives an error only; pair that of one that gives two things.
type (
	none           struct{}
	pair[A, B any] struct {
		A A
		B B
	}
)

func two[A, B any](a A, b B, err error) (pair[A, B], error) { return pair[A, B]{a, b}, err }

// ask calls a verb on model and store and fails unless they answer alike: the same refusal, or the same answer.
func ask[T any](w *twin, verb string, call func(s store.Store) (T, error)) (T, error) {
	w.calls[verb]++
	want, refusal := call(w.model)
	got, err := call(w.store)
	require.Equal(w.r, codeOf(refusal), codeOf(err), "%s: %v", verb, err)
	if err == nil {
		w.alike(verb, want, got)
	}
	return got, err
}

// must fails unless a verb was granted.
func (w *twin) must(_ none, err error) { require.NoError(w.r, err) }

// codeOf is the code of a refusal, "" for none.
func codeOf(err error) holdpoint.Code {
	var known *holdpoint.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &known):
		return known.Code
	}
	return holdpoint.Code("untyped: " + err.Error())
}

func (w *twin) alike(what string, want, got any) {
	a, b := plain(reflect.ValueOf(&want).Elem()), plain(reflect.ValueOf(&got).Elem())
	if !reflect.DeepEqual(a.Interface(), b.Interface()) {
		require.Equal(w.r, a.Interface(), b.Interface(), what)
		require.Fail(w.r, "answers differ", what)
	}
}

// plain copies a value without what the contract leaves open: none and empty are the same, and when a row was written last
// is not said.
func plain(v reflect.Value) reflect.Value {
	c := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() {
			return c
		}
		inner := plain(v.Elem())
		if v.Kind() == reflect.Interface {
			c.Set(inner)
			return c
		}
		c.Set(reflect.New(v.Type().Elem()))
		c.Elem().Set(inner)
	case reflect.Struct:
		c.Set(v)
		if _, instant := v.Interface().(time.Time); instant {
			return c
		}
		for i := range v.NumField() {
			if v.Type().Field(i).Name == "UpdatedAt" {
				c.Field(i).SetZero()
			} else {
				c.Field(i).Set(plain(v.Field(i)))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			c = reflect.Append(c, plain(v.Index(i)))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			if c.IsNil() {
				c = reflect.MakeMap(v.Type())
			}
			c.SetMapIndex(key, plain(v.MapIndex(key)))
		}
	default:
		c.Set(v)
	}
	return c
}

// id makes an id of its own, so that ids grow with time.
func (w *twin) id(kind string) string {
	w.ids++
	return fmt.Sprintf("%s-%05d", kind, w.ids)
}

// pick draws one of a list; what stands several times comes as often.
func pick[T any](w *twin, label string, list ...T) T { return rapid.SampledFrom(list).Draw(w.r, label) }

// seldom is true once in n times.
func (w *twin) seldom(label string, n int) bool { return rapid.IntRange(1, n).Draw(w.r, label) == n }

// tenant is the tenant that works, seldom the other one.
func (w *twin) tenant() string {
	if w.seldom("elsewhere", 12) {
		return modelTenants[1]
	}
	return modelTenants[0]
}
