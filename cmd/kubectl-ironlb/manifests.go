package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// manifests calls do with each object of the files, also with those in lists. - is standard input.
func manifests(files []string, stdin io.Reader, do func(file string, o *unstructured.Unstructured) error) error {
	for _, name := range files {
		data, err := []byte(nil), error(nil)
		if name == "-" {
			data, err = io.ReadAll(stdin)
		} else {
			data, err = os.ReadFile(name)
		}
		if err != nil {
			return fmt.Errorf("reading the manifests: %w", err)
		}
		if err := documents(name, data, do); err != nil {
			return err
		}
	}
	return nil
}

func documents(name string, data []byte, do func(file string, o *unstructured.Unstructured) error) error {
	for docs := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data))); ; {
		buf := make([]byte, len(data)+1)
		n, err := docs.Read(buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			buf, err = yaml.YAMLToJSONStrict(buf[:n])
		}
		var o map[string]any
		if err == nil {
			err = utiljson.Unmarshal(buf, &o) // with integers, as from the API server
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		u := &unstructured.Unstructured{Object: o}
		switch {
		case o == nil: // an empty document
		case u.IsList():
			list, err := u.ToList()
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			for i := range list.Items {
				if err := do(name, &list.Items[i]); err != nil {
					return err
				}
			}
		default:
			if err := do(name, u); err != nil {
				return err
			}
		}
	}
}
