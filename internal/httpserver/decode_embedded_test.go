package httpserver

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAWrongValueIsNamedAsTheCallerWroteIt(t *testing.T) {
	type Deeper struct {
		Version int `json:"version"`
	}
	type Work struct {
		Deeper
		Owner string `json:"owner"`
	}
	var v struct {
		Work
		Name string `json:"name"`
	}
	for doc, want := range map[string]string{
		`{"version":"1"}`: "version must be a whole number.",
		`{"version":1e0}`: "version must be a whole number.",
		`{"owner":1}`:     "owner must be a text.",
		`{"name":1}`:      "name must be a text.",
	} {
		require.ErrorContains(t, Unmarshal([]byte(doc), &v), want)
		require.NotContains(t, Unmarshal([]byte(doc), &v).Error(), "Work")
	}
}
