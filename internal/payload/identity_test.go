package payload_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/payload"
)

func key(t require.TestingT, o payload.Operation) string {
	k, err := o.Key()
	require.NoError(t, err, "%+v", o)
	require.NoError(t, payload.CheckKey(k), "%+v", o)
	return k
}

func TestOperationKey(t *testing.T) {
	require.Equal(t, "zendesk/4711/reply/7", key(t, payload.Operation{"zendesk", "4711", "reply", "7"}))
	require.Equal(t, "zendesk/4711/reply", key(t, payload.Operation{"zendesk", "4711", "reply", ""}))
	require.Equal(t, "a%2Fb/50%25%20off/c", key(t, payload.Operation{"a/b", "50% off", "c", ""}))
	require.Equal(t, "crm/"+"sha256:"+payload.Hash([]byte("Müller"))+"/note", key(t, payload.Operation{"crm", "Müller", "note", ""}))
	long := strings.Repeat("x", 5000)
	require.Equal(t, "crm/"+"sha256:"+payload.Hash([]byte(long))+"/note", key(t, payload.Operation{"crm", long, "note", ""}))

	h := "sha256:" + payload.Hash([]byte("ü"))
	all := strings.Repeat("ü", 9)
	distinct := []payload.Operation{
		{"a/b", "c", "d", ""}, {"a", "b/c", "d", ""}, {"a", "b", "c/d", ""}, {"a", "b", "c", "d"}, {"a%2Fb", "c", "d", ""},
		{"s", "ü", "a", ""}, {"s", h, "a", ""}, {"s", "é", "a", ""}, {"s", "e\u0301", "a", ""},
		{all, all, all, all}, {all, all, all, all + "ü"}, {all, all, all + "/" + all, ""}, {all, all, all, ""},
		{strings.Repeat("a", 99), strings.Repeat("b", 99), strings.Repeat("c", 99), ""},
		{strings.Repeat("a", 99), strings.Repeat("b", 99), strings.Repeat("c", 98), "c"},
	}
	seen := map[string]payload.Operation{}
	for _, o := range distinct {
		k := key(t, o)
		require.NotContains(t, seen, k, "%+v and %+v", o, seen[k])
		seen[k] = o
	}

	for _, bad := range []payload.Operation{
		{}, {"", "r", "a", "1"}, {"s", "", "a", "1"}, {"s", "r", "", "1"}, {"s", "r\n", "a", ""}, {"s", "r", "a", "\x00"},
		{"s", "r\u0085", "a", ""}, {"s", "\xff", "a", ""}, {"s\x7f", "r", "a", ""},
	} {
		_, err := bad.Key()
		require.Equal(t, holdpoint.CodeInvalidKey, code(t, err), "%q", bad)
	}
}

func TestOperationKeyIsInjective(t *testing.T) {
	part := rapid.OneOf(
		rapid.StringOfN(rapid.SampledFrom([]rune("ab/% :2F")), 1, 5, -1),
		rapid.SampledFrom([]string{"sha256:", "sha256:ab", "ü", "sha256:" + payload.Hash([]byte("ü")), strings.Repeat("a", 100),
			strings.Repeat("a", 101), strings.Repeat("%", 40)}))
	operation := rapid.Custom(func(t *rapid.T) payload.Operation {
		revision := rapid.OneOf(rapid.Just(""), part).Draw(t, "revision")
		return payload.Operation{part.Draw(t, "source"), part.Draw(t, "record"), part.Draw(t, "action"), revision}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := operation.Draw(t, "a"), operation.Draw(t, "b")
		require.Equal(t, a == b, key(t, a) == key(t, b), "%q %q", a, b)
	})
}

func TestCheckKey(t *testing.T) {
	for _, good := range []string{"a", "evt_1", "!~", "A/b:c#d", strings.Repeat("k", 255)} {
		require.NoError(t, payload.CheckKey(good), good)
	}
	for _, bad := range []string{"", " ", "a b", "a\n", "\x7f", "é", "\x00", strings.Repeat("k", 256)} {
		err := payload.CheckKey(bad)
		require.Equal(t, holdpoint.CodeInvalidKey, code(t, err), "%q", bad)
	}
	require.NotContains(t, payload.CheckKey("jane secret").Error(), "jane")
}

func TestWeakLooks(t *testing.T) {
	for key, want := range map[string]string{
		"evt_1NG8Du2eZvKYlo2C": "", "ORD-20260101-7": "", "daily-report/2026-01-01T06:00:00Z": "", "zendesk/4711/reply/7": "",
		"order-1": "", "4711-a": "", "01890a5d-ac96-774b-bcce-b302099a8057": "", // UUIDv7 names a thing as well as a time
		"1767225600": "timestamp", "1767225600123": "timestamp", "2026-01-01T00:00:00.000Z": "timestamp", "2026-01-01": "timestamp",
		"231": "counter", "0": "counter",
		"exec-231": "execution", "n8n:execution:231": "execution", "executionId=231": "", "run_17": "execution", "Execution231": "execution",
		"550e8400-e29b-41d4-a716-446655440000": "random_uuid", "550E8400-E29B-41D4-A716-446655440000": "random_uuid",
		payload.Hash(nil): "hash", "sha256:" + payload.Hash(nil): "hash", "d41d8cd98f00b204e9800998ecf8427e": "hash",
	} {
		require.Equal(t, want, payload.WeakLooks(key), key)
	}
}

func TestDerivedKey(t *testing.T) {
	plain := func(key string) payload.Identity { return payload.Identity{Key: key} }
	op := func(parts ...string) payload.Identity {
		o := payload.Operation{Source: parts[0], Record: parts[1], Action: parts[2]}
		if len(parts) > 3 {
			o.Revision = parts[3]
		}
		return payload.Identity{Key: key(t, o), Operation: &o}
	}
	chain := func(ids ...payload.Identity) []payload.Identity { return ids }
	order1, reply1 := chain(plain("order-1")), chain(op("zendesk", "4711", "reply", "1"))

	for _, tc := range []struct {
		name     string
		chain    []payload.Identity
		proposed payload.Identity
		derived  bool
	}{
		{"another upstream id", order1, plain("order-2"), false},
		{"longer number", order1, plain("order-10"), false},
		{"shorter number", chain(plain("order-10")), plain("order-1"), false},
		{"longer word", chain(plain("order")), plain("orders"), false},
		{"same key", order1, plain("order-1"), true},
		{"suffix -2", order1, plain("order-1-2"), true},
		{"suffix _x", order1, plain("order-1_x"), true},
		{"suffix .anything", order1, plain("order-1.anything"), true},
		{"suffix /", order1, plain("order-1/"), true},
		{"suffix #", order1, plain("order-1#a"), true},
		{"suffix ~", order1, plain("order-1~a"), true},
		{"suffix (2)", order1, plain("order-1(2)"), true},
		{"word", order1, plain("order-1retry"), true},
		{"word and number", order1, plain("order-1retry3"), true},
		{"word and more", order1, plain("order-1fix_b"), true},
		{"other words", order1, plain("order-1copy"), true},
		{"again", order1, plain("order-1again"), true},
		{"word, upper case", order1, plain("order-1RETRY"), true},
		{"key, upper case", order1, plain("ORDER-1-retry"), true},
		{"unknown word", order1, plain("order-1b"), false},
		{"word begins it only", order1, plain("order-1newton"), false},
		{"prefix word", order1, plain("retry-order-1"), true},
		{"prefix copy of", order1, plain("Copy_of_order-1"), true},
		{"prefix word and number", order1, plain("retry2:order-1"), true},
		{"prefix is part of the name", order1, plain("back-order-1"), false},
		{"prefix starts with a word", order1, plain("fix-protocol-order-1"), false},
		{"any key of the chain", chain(plain("x9"), plain("order-1"), plain("y9")), plain("order-1-retry"), true},
		{"empty chain", nil, plain("order-1-retry"), false},

		{"next revision", reply1, op("zendesk", "4711", "reply", "2"), false},
		{"any revision", reply1, op("zendesk", "4711", "reply", "1-retry"), false},
		{"first revision", chain(op("zendesk", "4711", "reply")), op("zendesk", "4711", "reply", "1"), false},
		{"no revision any more", reply1, op("zendesk", "4711", "reply"), false},
		{"same operation", reply1, op("zendesk", "4711", "reply", "1"), true},
		{"revision of the chain", append(chain(op("zendesk", "4711", "reply", "2")), reply1...), op("zendesk", "4711", "reply", "1"), true},
		{"revision passes beside a plain key", append(chain(plain("zendesk/4711/reply")), reply1...), op("zendesk", "4711", "reply", "2"), false},
		{"another record", reply1, op("zendesk", "4712", "reply", "1"), false},
		{"longer record", reply1, op("zendesk", "47110", "reply", "1"), false},
		{"another action", reply1, op("zendesk", "4711", "close", "1"), false},
		{"record with suffix", reply1, op("zendesk", "4711-retry", "reply", "1"), true},
		{"record with suffix and revision", reply1, op("zendesk", "4711-b", "reply", "2"), true},
		{"action with word", reply1, op("zendesk", "4711", "reply-again", "1"), true},
		{"two parts with suffix", reply1, op("zendesk", "4711-b", "reply-b", "1"), true},
		{"one suffix, one other", reply1, op("zendesk", "4711-b", "close", "1"), false},

		{"composed key with suffix", reply1, plain("zendesk/4711/reply/1-retry"), true},
		{"composed key, longer number", reply1, plain("zendesk/4711/reply/10"), false},
		{"record with suffix as plain key", chain(op("shop", "order-1", "fulfil", "1")), plain("order-1-retry"), true},
		{"record as plain key", chain(op("shop", "order-1", "fulfil", "1")), plain("order-1"), false},
		{"plain key as record with revision", order1, op("shop", "order-1", "fulfil", "2"), false},
		{"plain key as record without revision", order1, op("shop", "order-1", "fulfil"), true},
		{"plain key with suffix as record", order1, op("shop", "order-1-b", "fulfil", "1"), true},
		{"plain key begins the composed key", chain(plain("shop")), op("shop", "order-1", "fulfil", "1"), true},
	} {
		why, derived := payload.DerivedKey(tc.chain, tc.proposed)
		require.Equal(t, tc.derived, derived, "%s: %s", tc.name, why)
		require.Equal(t, derived, why != "", tc.name)
		require.NotContains(t, why, "order-1", "the sentence does not repeat keys")
	}

	o := payload.Operation{Source: "zendesk", Record: "4711", Action: "reply", Revision: "1"}
	_, derived := payload.DerivedKey(chain(payload.Identity{Operation: &o}), plain("zendesk/4711/reply/1"))
	require.True(t, derived, "the key of an operation need not be given")
}
