package payload

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEvidenceOfAFaultNamesOnlyWhatTheContractSpellsOut(t *testing.T) {
	c, err := CompileContract("c.json", []byte(`{"type":"object","properties":{"items":{"type":"array","items":{"type":"object","properties":{"a/b":{"type":"string"}},"additionalProperties":false}}}}`))
	require.NoError(t, err)
	for pointer, want := range map[string]string{
		"":                 "type",
		"/items":           "type /items",
		"/items/7/a~1b":    "type /items/*/a~1b",
		"/items/7/Jane":    "type /items/*/*",
		"/4111111111":      "type /*",
		"/items/0/a~1b/~0": "type /items/*/a~1b/*",
	} {
		require.Equal(t, want, c.Evidence(Fault{Pointer: pointer, Code: "type", Message: "must be text"}))
	}
}
