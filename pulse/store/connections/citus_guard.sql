-- For the node that has the rows of a queue: no statement may write to rows that have been moved away. Citus locks a shard
-- for the end of its move on each node; who waits for that lock looks where the shard is afterwards.
CREATE OR REPLACE FUNCTION pulse.stay_with_rows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM lock_shard_metadata(5, ARRAY[TG_ARGV[0]::bigint]);  -- SHARE, as the writes that Citus plans
    IF NOT EXISTS (SELECT FROM pg_dist_placement p JOIN pg_dist_local_group g ON g.groupid = p.groupid
                   WHERE p.shardid = TG_ARGV[0]::bigint) THEN
        RAISE EXCEPTION 'Citus has moved this queue to another node' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    RETURN NULL;
END
$$;
