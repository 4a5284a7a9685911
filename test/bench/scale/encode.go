package main

import (
	"io"
	"net/http"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// codecs have all kinds that a speaker reads.
var codecs = func() serializer.CodecFactory {
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(all); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(all)
}()

// codec encodes the objects of a response and the events of a watch.
type codec struct {
	content, stream string
	object          runtime.Encoder
	info            runtime.SerializerInfo
}

// codecOf returns protobuf for kinds that have it and clients that accept it, else JSON.
func codecOf(req *http.Request, r *resource) codec {
	content := runtime.ContentTypeJSON
	if r.proto && strings.Contains(req.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		content = runtime.ContentTypeProtobuf
	}
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), content)
	if !ok {
		panic("no serializer for " + content)
	}
	version, err := schema.ParseGroupVersion(r.version)
	if err != nil {
		panic(err)
	}
	return codec{content: content, stream: content + ";stream=watch", object: codecs.EncoderForVersion(info.Serializer, version), info: info}
}

// sender returns a function that sends an event.
func (c codec) sender(w io.Writer) func(event) error {
	events := streaming.NewEncoder(c.info.StreamSerializer.NewFrameWriter(w), c.info.StreamSerializer.Serializer)
	return func(e event) error {
		raw, err := runtime.Encode(c.object, e.object)
		if err != nil {
			return err
		}
		return events.Encode(&metav1.WatchEvent{Type: e.kind, Object: runtime.RawExtension{Raw: raw}})
	}
}

// newItem returns an empty item of a list.
func newItem(list runtime.Object) runtime.Object {
	items := reflect.ValueOf(list).Elem().FieldByName("Items")
	return reflect.New(items.Type().Elem()).Interface().(runtime.Object)
}
