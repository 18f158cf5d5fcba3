package main

import (
	"bytes"
	"embed"
	"io/fs"
	"strconv"
	"text/template"
)

// sampleFiles are the policy that init writes and the schema that it names.
//
//go:embed sample
var sampleFiles embed.FS

// sampleSchema is the schema file that the sample names, relative to it.
const sampleSchema = "schemas/ticket-reply.json"

// samplePolicy gives the sample with admin as its approver, and its schema.
func samplePolicy(admin string) (document, schema []byte, err error) {
	text, err := fs.ReadFile(sampleFiles, "sample/holdpoint.yaml")
	if err != nil {
		return nil, nil, err
	}
	if schema, err = fs.ReadFile(sampleFiles, "sample/"+sampleSchema); err != nil {
		return nil, nil, err
	}
	t, err := template.New("policy").Parse(string(text))
	if err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, struct{ Admin string }{strconv.Quote(admin)})
	return b.Bytes(), schema, err
}
