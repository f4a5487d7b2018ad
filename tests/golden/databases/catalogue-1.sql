BEGIN TRANSACTION;
CREATE TABLE blobs (
    blob TEXT PRIMARY KEY, bytes INTEGER NOT NULL,
    diff_id TEXT NOT NULL REFERENCES diff_ids ON DELETE CASCADE) STRICT;
CREATE TABLE diff_ids (
    diff_id TEXT PRIMARY KEY, digest TEXT NOT NULL REFERENCES layers ON DELETE CASCADE) STRICT;
CREATE TABLE image_layers (
    reference TEXT NOT NULL REFERENCES images ON DELETE CASCADE, position INTEGER NOT NULL,
    digest TEXT NOT NULL REFERENCES layers, PRIMARY KEY (reference, position)) STRICT;
INSERT INTO "image_layers" VALUES('dsec/debian:12',0,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa');
CREATE TABLE images (
    reference TEXT PRIMARY KEY, digest TEXT NOT NULL, config TEXT NOT NULL, bytes INTEGER NOT NULL,
    created_at REAL NOT NULL) STRICT;
INSERT INTO "images" VALUES('dsec/debian:12','sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb','{"env":{"PATH":"/bin","LANG":"C","FROM":"image"},"user":"app","workdir":"/srv","entrypoint":["echo"],"cmd":["hello"]}',1000,1.79599353226427912704e+09);
CREATE TABLE layer_tags (
    tag TEXT PRIMARY KEY, digest TEXT NOT NULL REFERENCES layers, created_at REAL NOT NULL) STRICT;
CREATE TABLE layers (digest TEXT PRIMARY KEY, bytes INTEGER NOT NULL, created_at REAL NOT NULL) STRICT;
INSERT INTO "layers" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',1000,1.79599353225516247746e+09);
CREATE TABLE past_sandboxes (
    id TEXT PRIMARY KEY, name TEXT, image TEXT NOT NULL, labels TEXT NOT NULL, principal TEXT NOT NULL,
    cause TEXT NOT NULL, created_at REAL NOT NULL, ended_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX image_layers_by_digest ON image_layers (digest);
COMMIT;
