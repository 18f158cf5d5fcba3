package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCommandsCallTheServerByTheClient holds that no command makes HTTP of its own: what talks to a server talks by
// package client.
func TestCommandsCallTheServerByTheClient(t *testing.T) {
	names, err := fs.Glob(os.DirFS("."), "*.go")
	require.NoError(t, err)
	byClient := false
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, x := range file.Imports {
			path, err := strconv.Unquote(x.Path.Value)
			require.NoError(t, err)
			require.False(t, path == "net/http" || strings.HasPrefix(path, "net/http/"), "%s imports %s", name, path)
			byClient = byClient || path == "github.com/holdpoint/holdpoint/client"
		}
	}
	require.True(t, byClient)
}
